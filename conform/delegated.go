package conform

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// standIn takes the place of a plugin to which a plugin of the list delegates. If the stand-in is
// called with a certain verb, it notes the call, and fails. It passes all other verbs on to the
// real plugin. It keeps what it was given and, of the real plugin, what that has answered.
type standIn struct {
	plugin int    // index in the list of the plugin that delegates
	name   string // the name of the plugin whose place the stand-in takes
	path   string // the folder that has the stand-in
	mark   string // the file that exists once the stand-in was called with the verb
}

// standInFor makes a stand-in for the IPAM plugin of the first plugin that has an IPAM plugin
// (CNI 1.1, section 1: "ipam"). If no plugin has one, standInFor ends the check.
func (t *T) standInFor(verb string) *standIn {
	for i, p := range t.list().Plugins {
		var ipam struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(p.Keys["ipam"], &ipam) != nil || ipam.Type == "" || strings.Contains(ipam.Type, "/") {
			continue
		}
		program := filepath.Join(t.suite.BinDir, ipam.Type)
		if unix.Access(program, unix.X_OK) != nil {
			continue
		}
		dir, err := os.MkdirTemp(t.scratch(), "stand-in-*")
		t.must(err)
		s := &standIn{plugin: i, name: ipam.Type, path: dir, mark: filepath.Join(dir, "called")}
		script := fmt.Sprintf(`#!/bin/sh
at='%[1]s'/$CNI_COMMAND
cat >"$at.in"
env | grep ^CNI_ >"$at.env"
echo %[2]s >&2
if test "$CNI_COMMAND" = %[3]s; then
	: >'%[4]s'
	echo '%[5]s'
	exit 1
fi
'%[6]s' <"$at.in" >"$at.out"
code=$?
cat "$at.out"
exit $code
`, dir, standInSays, verb, s.mark, `{"cniVersion":"1.1.0","code":50,"msg":"not available","details":"this stand-in always says so"}`,
			strings.ReplaceAll(program, "'", `'\''`))
		t.must(os.WriteFile(filepath.Join(dir, ipam.Type), []byte(script), 0o755))
		return s
	}
	t.Unsupportedf("no plugin of the list delegates to an IPAM plugin")
	return nil
}

// standInSays is what a stand-in writes to standard error.
const standInSays = "conform-stand-in-says"

// read returns what the stand-in was given at the last call of a verb ("in" by standard input, "env" in CNI_ variables), or what the real plugin has
// answered ("out"); "" if there was no such call.
func (s *standIn) read(verb, what string) string {
	raw, err := os.ReadFile(filepath.Join(s.path, verb+"."+what))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// called reports whether the stand-in was called with its verb.
func (s *standIn) called() bool {
	_, err := os.Stat(s.mark)
	return err == nil
}

// scratch returns a folder on the node for the suite's own files.
func (t *T) scratch() string {
	t.must(os.MkdirAll(suiteDir, 0o755))
	return suiteDir
}
