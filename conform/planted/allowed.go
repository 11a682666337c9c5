package main

import (
	"os"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// What plugins may do is no fault, and no check may take it for one: it is asked for as faults are.

// busy answers that the runtime should try again later, if another call has the state folder locked ("busy-at-once").
func busy(dir *os.File) error {
	if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return fail(codeLater, "another call is under way")
	}
	return nil
}

// setUpTable makes an empty table, which stays ("table-at-failure"): some plugins set up what all pods share before they look whether they can
// attach a pod.
//
//	nft add table ip planted-base
func setUpTable() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "planted-base"})
	return conn.Flush()
}
