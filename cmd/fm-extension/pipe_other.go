//go:build !linux

package main

import "os"

// widen does nothing: pipes here have the size that they have.
func widen(*os.File) {}
