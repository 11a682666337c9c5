// Package hold has the words that all of Berth uses: an owner has names and holds, and a
// kind takes one sort of hold and gives it back.
package hold
