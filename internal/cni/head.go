package cni

import (
	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/root"
)

// Head is what the plugin itself needs of a configuration. The agent reads the
// whole (netconf.Parse).
type Head struct {
	Version  string   // cniVersion; 0.1.0 if absent
	Name     string   // the network's
	Root     root.Dir // of the agent
	Pool     string   // "" is the agent's default
	Wait     bool     // DEL answers when all is gone
	HostVeth string   // of prevResult; "" if it says none
}

// ParseHead reads the head of a configuration. Even on an error, Version is
// what could be read of it, since an error is printed in that version.
func ParseHead(raw []byte) (Head, *api.Error) {
	h, fields, e := essentials(raw)
	if e != nil {
		return h, e
	}
	if h.Pool, e = textField(fields, "pool"); e != nil {
		return h, e
	}
	if h.Pool != "" && !isID(h.Pool) {
		return h, ConfigError("pool", fields.Get("pool"), expectID)
	}
	h.Wait, e = boolField(fields, "wait")
	return h, e
}

// ParseDel is ParseHead for DEL, which must not fail for the sake of a key
// that releasing does not need: only what says which attachment of which
// agent is meant must be readable.
func ParseDel(raw []byte) (Head, *api.Error) {
	h, fields, e := essentials(raw)
	if e != nil {
		return h, e
	}
	h.Wait, _ = boolField(fields, "wait")
	return h, nil
}

// ParseVersion returns the cniVersion of VERSION's stdin; "" if it has none, or
// cannot be read.
func ParseVersion(raw []byte) string {
	fields, err := scan.Object(raw)
	if err != nil {
		return ""
	}
	v, _ := fields.Text("cniVersion")
	return v
}

// essentials reads version, name, root, and prevResult's host veth.
func essentials(raw []byte) (h Head, fields scan.Fields, e *api.Error) {
	h = Head{Version: CurrentVersion, Root: root.Default}
	fields, err := scan.Object(raw)
	if err != nil {
		return h, nil, DecodeError(err)
	}
	v, e := textField(fields, "cniVersion")
	if e != nil {
		return h, nil, e
	}
	if h.Version = v; v == "" {
		h.Version = firstVersion
	}
	if h.Name, e = textField(fields, "name"); e != nil {
		return h, nil, e
	}
	if h.Name == "" {
		return h, nil, MissingError("name", "the network's name: "+expectID)
	}
	if e := CheckNetworkName(h.Name); e != nil {
		return h, nil, e
	}
	dir, e := rootField(fields)
	if e != nil {
		return h, nil, e
	}
	h.Root = dir
	h.HostVeth = hostVeth(fields.Get("prevResult"))
	return h, fields, nil
}

func rootField(fields scan.Fields) (root.Dir, *api.Error) {
	dir, e := textField(fields, "root")
	switch {
	case e != nil:
		return "", e
	case dir == "":
		return root.Default, nil
	case !isPath(dir):
		return "", ConfigError("root", fields.Get("root"), expectPath+": the --root of an agent")
	}
	return root.Dir(dir), nil
}

// textField returns a string; "" if it is absent or null.
func textField(fields scan.Fields, key string) (string, *api.Error) {
	s, err := fields.Text(key)
	if err != nil {
		return "", ConfigError(key, fields.Get(key), "a string")
	}
	return s, nil
}

// boolField returns a boolean; false if it is absent or null.
func boolField(fields scan.Fields, key string) (bool, *api.Error) {
	switch value := fields.Get(key); string(value) {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, ConfigError(key, value, "true or false")
	}
}

// hostVeth returns the name of the host's end of Berth's link that a
// prevResult has; "" if there is none, or the result cannot be read: it is a
// help, and DEL does without.
func hostVeth(prevResult []byte) string {
	result, err := scan.Object(prevResult)
	if err != nil {
		return ""
	}
	interfaces, err := scan.Array(result.Get("interfaces"))
	if err != nil {
		return ""
	}
	for _, raw := range interfaces {
		fields, err := scan.Object(raw)
		if err != nil {
			continue
		}
		name, err1 := fields.Text("name")
		sandbox, err2 := fields.Text("sandbox")
		if err1 == nil && err2 == nil && sandbox == "" && isLinkName(name) {
			return name
		}
	}
	return ""
}

// isLinkName reports whether a name has the form of Berth's host veths: b, and
// 14 characters of the ID alphabet.
func isLinkName(s string) bool {
	if len(s) != maxIfname || s[0] != 'b' {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}
