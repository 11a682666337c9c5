package cni

import (
	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/root"
)

// Head is what the plugin itself needs of a configuration. The agent reads the
// whole (ParseConf).
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
	fields, err := scan.Object(raw)
	if err != nil {
		return Head{Version: CurrentVersion}, DecodeError(err)
	}
	h, e := essentials(fields)
	if e != nil {
		return h, e
	}
	h.HostVeth = hostVeth(lookup(fields, "prevResult"))
	if h.Pool, e = textField(fields, "pool"); e != nil {
		return h, e
	}
	if h.Pool != "" && !isID(h.Pool) {
		return h, ConfigError("pool", lookup(fields, "pool"), expectID)
	}
	h.Wait, e = boolField(fields, "wait")
	return h, e
}

// ParseDel is ParseHead for DEL, which must not fail for the sake of a key
// that releasing does not need: only what says which attachment of which
// agent is meant must be readable.
func ParseDel(raw []byte) (Head, *api.Error) {
	fields, err := scan.Object(raw)
	if err != nil {
		return Head{Version: CurrentVersion}, DecodeError(err)
	}
	h, e := essentials(fields)
	if e != nil {
		return h, e
	}
	h.HostVeth = hostVeth(lookup(fields, "prevResult"))
	h.Wait, _ = boolField(fields, "wait")
	return h, nil
}

// essentials reads version, name and root.
func essentials(fields []scan.Field) (Head, *api.Error) {
	h := Head{Version: CurrentVersion, Root: root.Default}
	v, e := textField(fields, "cniVersion")
	if e != nil {
		return h, e
	}
	if h.Version = v; v == "" {
		h.Version = firstVersion
	}
	if h.Name, e = textField(fields, "name"); e != nil {
		return h, e
	}
	if h.Name == "" {
		return h, MissingError("name", "the network's name: "+expectID)
	}
	if e := CheckNetworkName(h.Name); e != nil {
		return h, e
	}
	dir, e := rootField(fields)
	if e != nil {
		return h, e
	}
	h.Root = dir
	return h, nil
}

func rootField(fields []scan.Field) (root.Dir, *api.Error) {
	dir, e := textField(fields, "root")
	switch {
	case e != nil:
		return "", e
	case dir == "":
		return root.Default, nil
	case !isPath(dir):
		return "", ConfigError("root", lookup(fields, "root"), expectPath+": the --root of an agent")
	}
	return root.Dir(dir), nil
}

// lookup returns a field's value; nil if it is absent or null.
func lookup(fields []scan.Field, key string) []byte {
	for _, f := range fields {
		if f.Key == key && !scan.IsNull(f.Value) {
			return f.Value
		}
	}
	return nil
}

// textField returns a string; "" if it is absent or null.
func textField(fields []scan.Field, key string) (string, *api.Error) {
	value := lookup(fields, key)
	if value == nil {
		return "", nil
	}
	s, err := scan.String(value)
	if err != nil {
		return "", ConfigError(key, value, "a string")
	}
	return s, nil
}

// boolField returns a boolean; false if it is absent or null.
func boolField(fields []scan.Field, key string) (bool, *api.Error) {
	switch value := lookup(fields, key); string(value) {
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
	interfaces, err := scan.Array(lookup(result, "interfaces"))
	if err != nil {
		return ""
	}
	for _, raw := range interfaces {
		fields, err := scan.Object(raw)
		if err != nil {
			continue
		}
		name, e1 := textField(fields, "name")
		sandbox, e2 := textField(fields, "sandbox")
		if e1 == nil && e2 == nil && sandbox == "" && isLinkName(name) {
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
