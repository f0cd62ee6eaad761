// Package wire holds the names and identities that every document and record of
// the contract is made of ("wire: Digests and identities"): digests, request
// ids, and the forms of the names in its table.
//
// A Check function returns "" for a string of its form, else what the string
// must be, in words that follow "must be". It never quotes the string, so that
// its answer may stand in a message about hostile input. All functions are safe
// for concurrent use.
package wire
