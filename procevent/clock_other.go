//go:build !linux

package procevent

// onClockSet: only Linux tells when the clock jumps.
func onClockSet(func()) (stop func()) { return func() {} }
