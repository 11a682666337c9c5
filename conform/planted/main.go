// Command planted is a CNI plugin for the tests of package conform. It follows the
// specification, 0.4.0 to 1.1.0, unless its program's name asks for a fault, such as
// planted-rule-left (for VERSION, the program's name is the only place to ask for a fault).
// faults_test.go lists the faults. The plugin joins a pod to the host by a veth pair.
//
//	{"type": "planted", "subnet": "10.8.0.0/24", "stateDir": "/var/lib/planted"}
//
// With "chained": true it makes no interface, but adds a rule for the address of the interface
// that a plugin before it has made.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var versions = []string{"0.4.0", "1.0.0", "1.1.0"}

// The codes of this plugin's errors (CNI 1.1, section 5: "Error").
const (
	codeVersion   = 1
	codeField     = 2
	codeVariable  = 4
	codeIO        = 5
	codeDecode    = 6
	codeConfig    = 7
	codeLater     = 11
	codeAway      = 50
	codeOurs      = 100 // the first code that the specification leaves to plugins
	codeExists    = codeOurs + 1
	codeFull      = codeOurs + 2
	codeUnhealthy = codeOurs + 3
	codeTaken     = codeOurs + 4
)

// failure is an error with a CNI code.
type failure struct {
	code uint
	error
}

func fail(code uint, format string, args ...any) error {
	return failure{code, fmt.Errorf(format, args...)}
}

func main() {
	if os.Getenv(listenerEnv) != "" {
		fmt.Fprintln(os.Stderr, listen())
		os.Exit(1)
	}
	c, err := read(os.Stdin)
	var answer any
	if err == nil {
		answer, err = c.do()
	}
	if err != nil {
		os.Exit(c.refuse(err))
	}
	if c.verb == "ADD" && c.fault("log-on-stdout") {
		fmt.Println("level=info msg=done")
	}
	if c.fault(strings.ToLower(c.verb) + "-prints") {
		answer = map[string]any{}
	}
	if answer != nil {
		if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
			os.Exit(1)
		}
	}
}

// do does what CNI_COMMAND asks for.
func (c *call) do() (any, error) {
	c.asked(strings.ToLower(c.verb) + "-leaves-file")
	if c.verb == "VERSION" {
		if os.Getenv("CNI_PATH") == "" && c.fault("version-needs-path") {
			return nil, fail(codeVariable, "CNI_PATH is not set")
		}
		return c.versionInfo(), nil
	}
	if !slices.Contains(versions, c.Version) {
		return nil, fail(codeVersion, "cniVersion %q is not supported", c.Version)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if strings.HasPrefix(c.wrong, "ipam") && c.wrong != "ipam-address-ignored" {
		return c.serve()
	}
	if c.fault("linkless") {
		return c.linkless()
	}
	if c.verb == "ADD" && c.fault("lacks") {
		return nil, fmt.Errorf("making a link: %w", unix.EOPNOTSUPP)
	}
	if err := c.need(); err != nil {
		return nil, err
	}
	unlock, err := c.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c.verb == "ADD" && c.fault("slow") {
		time.Sleep(150 * time.Millisecond) // other calls that come at once wait for this one
	}
	switch {
	case c.verb == "ADD" && c.Chained:
		return c.addChained()
	case c.verb == "ADD":
		return c.add()
	case c.verb == "DEL":
		return nil, c.del()
	case c.verb == "CHECK":
		return nil, c.verify()
	case c.verb == "STATUS":
		return nil, errors.Join(c.status(), c.pass("STATUS"))
	}
	return nil, errors.Join(c.gc(), c.pass("GC"))
}

// linkless plays a plugin that makes no interface, and sets lo up (the reference plugin loopback). It has no fault.
func (c *call) linkless() (any, error) {
	if c.verb != "ADD" {
		return nil, nil
	}
	pod, err := os.Open(c.netns)
	if err != nil {
		return nil, fail(codeVariable, "CNI_NETNS: %w", err)
	}
	defer pod.Close()
	if err := inside(pod, func() error { return netlink.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 1}}) }); err != nil {
		return nil, err
	}
	if c.Prev != nil {
		return c.Prev, nil
	}
	return map[string]any{"cniVersion": c.Version, "interfaces": []any{map[string]any{"name": "lo", "sandbox": c.netns}}, "dns": map[string]any{}}, nil
}

func (c *call) versionInfo() any {
	info := map[string]any{"cniVersion": c.Version, "supportedVersions": versions}
	if c.fault("version-empty") {
		info["supportedVersions"] = []string{}
	}
	return info
}

// refuse writes the answer for an error and returns the program's exit code.
func (c *call) refuse(err error) int {
	code := uint(codeOurs)
	var f failure
	if errors.As(err, &f) {
		code = f.code
	}
	if c.fault("error-without-json") {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	out := map[string]any{"cniVersion": c.Version, "code": code, "msg": err.Error()}
	if c.fault("error-without-code") {
		delete(out, "code")
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return 2
	}
	if c.fault("error-exits-zero") {
		return 0
	}
	return 1
}

// read reads the variables and the configuration of a call.
func read(in io.Reader) (*call, error) {
	c := &call{
		verb: os.Getenv("CNI_COMMAND"), id: os.Getenv("CNI_CONTAINERID"),
		netns: os.Getenv("CNI_NETNS"), ifname: os.Getenv("CNI_IFNAME"),
	}
	_, c.wrong, _ = strings.Cut(filepath.Base(os.Args[0]), "planted-")
	c.Version = versions[len(versions)-1] // the version of an error's answer if the call names no version
	raw, err := io.ReadAll(in)
	if err != nil {
		return c, fail(codeIO, "reading the configuration: %w", err)
	}
	c.raw = raw
	if err := json.Unmarshal(raw, &c.config); err != nil {
		return c, fail(codeDecode, "decoding the configuration: %w", err)
	}
	if c.fault("id-cut") && len(c.id) > 12 {
		c.id = c.id[:12]
	}
	return c, nil
}
