// Package gitenv keeps the variables of Git that lead it to another repository
// than that of the directory it runs in. Git sets them for its hooks and aliases,
// and people do in shells; who runs something in a work tree means that one.
package gitenv
