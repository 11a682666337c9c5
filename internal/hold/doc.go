// Package hold has the words that everything in Berth is said in: an owner has
// names and holds, and a kind takes one sort of hold and gives it back.
package hold
