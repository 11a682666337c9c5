// Package show turns what the rooms below know into the API's types: what people and
// programs see of the ledger, the pools and the deletion queue.
package show
