package main

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

// database is the file in which the fault id-kept-without-netns keeps ids, divided by zeros: nobody can read it as text, as nobody reads the
// database of a plugin that has one.
const database = "/run/planted-database"

// remember keeps an id that DEL should have forgotten.
func remember(id string) error {
	f, err := os.OpenFile(database, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(codeIO, "planting: %w", err)
	}
	defer f.Close()
	_, err = f.WriteString(id + "\x00")
	return err
}

// stranger makes the database if there is none, and returns an error if it has the id of a call.
func (c *call) stranger() error {
	if err := remember(""); err != nil {
		return err
	}
	raw, err := os.ReadFile(database)
	if err != nil {
		return fail(codeIO, "planting: %w", err)
	}
	for id := range bytes.SplitSeq(raw, []byte{0}) {
		if string(id) == c.id {
			return fail(codeExists, "%s is attached already", c.id)
		}
	}
	return nil
}

// asked leaves a file at a call that only asks, if that is the fault: "check-leaves-file" for CHECK.
func (c *call) asked(wrong string) {
	if !c.fault(wrong) {
		return
	}
	if err := os.WriteFile(fmt.Sprintf("/tmp/planted-asked-%d", time.Now().UnixNano()), nil, 0o600); err != nil {
		fmt.Fprintf(os.Stderr, "planting: %v\n", err)
	}
}
