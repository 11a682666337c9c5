// Package show turns what the ledger, the pools and the deletion queue know into the
// API's types. It knows no agent: the CLI shows what it reads itself by the same functions.
package show
