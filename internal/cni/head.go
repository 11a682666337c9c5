package cni

import (
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// Head is the part of a configuration that the plugin itself needs. The agent reads the
// whole configuration (netconf.Parse).
type Head struct {
	Version string   // cniVersion; 0.1.0 if absent
	Name    string   // the network's
	Root    root.Dir // of the agent
	Pool    string   // "": the agent's default
	Wait    bool     // DEL answers when everything is gone
	// AddWait is how long ADD waits for an agent that is away.
	AddWait time.Duration
	// GCMinAge is the age below which GC spares an attachment.
	GCMinAge time.Duration
	HostVeth string // the host veth that prevResult names; "" if it names none
	// Addresses are the addresses of a prevResult that names HostVeth, without prefix lengths.
	Addresses []string
	// Networks says that the configuration names networks that each pod gets beside Berth's own, or instead of it, or an IPAM plugin.
	Networks bool
	// Chained says that the configuration's mode is chained: the pod's link is another plugin's.
	Chained bool
	// Loopback says that the configuration is the plugin loopback's, by its type.
	Loopback bool
}

// defaultAddWait is longer than an agent takes to restart. A runtime repeats an ADD that fails
// only after a pause, which after a few failures is longer than defaultAddWait.
const defaultAddWait = 2 * time.Second

// ParseHead reads the head of a configuration. Also with an error, Version is set as far as
// it could be read, since the error is printed in that version.
func ParseHead(raw []byte) (Head, *api.Error) {
	h := Head{Version: CurrentVersion, Root: root.Default}
	fields, err := scan.Object(raw)
	if err != nil {
		return h, DecodeError(err)
	}
	h, e := essentials(fields, notList)
	if e != nil {
		return h, e
	}
	if h.Pool, e = textField(fields, "pool"); e != nil {
		return h, e
	}
	if h.Pool != "" && !isID(h.Pool) {
		return h, ConfigError("pool", fields.Get("pool"), expectID)
	}
	if h.Wait, e = boolField(fields, "wait"); e != nil {
		return h, e
	}
	if h.AddWait, e = durationField(fields, "addWait"); e != nil {
		return h, e
	}
	if text, _ := fields.Text("addWait"); text == "" {
		h.AddWait = defaultAddWait
	}
	h.Networks = namesNetworks(fields)
	h.GCMinAge, e = durationField(fields, "gcMinAge")
	return h, e
}

// namesNetworks reports whether a configuration has a key that gives networks to each pod, or says when they are ready
// (netconf.Networks), or names an IPAM plugin.
func namesNetworks(fields scan.Fields) bool {
	for _, key := range [...]string{"delegates", "clusterNetwork", "defaultNetworks", "readinessindicatorfile"} {
		if value := fields.Get(key); value != nil && !scan.IsNull(value) {
			return true
		}
	}
	// libcni and old tools write an empty ipam.
	value := fields.Get("ipam")
	return value != nil && !scan.IsNull(value) && string(value) != "{}"
}

// ParseDel is ParseHead for DEL, which must not fail because of a key that a release does not need,
// or because of that key's value. Only the keys that name the attachment and its
// agent have to be readable.
func ParseDel(raw []byte) (Head, *api.Error) {
	h := Head{Version: CurrentVersion, Root: root.Default}
	fields, err := scan.Top(raw, "cniVersion", "name", "root")
	if err != nil {
		return h, DecodeError(err)
	}
	h, e := essentials(fields, nil)
	if e != nil {
		return h, e
	}
	h.Wait, _ = boolField(fields, "wait")
	return h, nil
}

// ParseVersion returns the cniVersion of VERSION's stdin; "" if stdin has none, or cannot
// be read.
func ParseVersion(raw []byte) string {
	fields, err := scan.Object(raw)
	if err != nil {
		return ""
	}
	v, _ := fields.Text("cniVersion")
	return v
}

// notList refuses a whole list of plugins, such as one that somebody pipes in by hand.
// Everything else that is wrong with such a configuration follows from that mistake.
func notList(fields scan.Fields) *api.Error {
	if list := fields.Get("plugins"); list != nil {
		return FieldError("plugins", list, "this is a whole plugin list; a plugin takes one entry of it, as libcni passes it")
	}
	return nil
}

// essentials reads version, name and root, and what prevResult says of Berth's attachment.
// If check is not nil, its error comes before all others but those about the version.
func essentials(fields scan.Fields, check func(scan.Fields) *api.Error) (h Head, e *api.Error) {
	h = Head{Version: CurrentVersion, Root: root.Default}
	v, e := textField(fields, "cniVersion")
	if e != nil {
		return h, e
	}
	if h.Version = v; v == "" {
		h.Version = firstVersion
	}
	if check != nil {
		if e := check(fields); e != nil {
			return h, e
		}
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
	h.Loopback = string(fields.Get("type")) == `"loopback"` // no other type matters to the head
	h.Chained = string(fields.Get("mode")) == `"chained"`
	dir, e := rootField(fields)
	if e != nil {
		return h, e
	}
	h.Root = dir
	h.HostVeth, h.Addresses = ours(fields.Get("prevResult"))
	return h, nil
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

// textField returns a key's string; "" if the key is absent or null.
func textField(fields scan.Fields, key string) (string, *api.Error) {
	s, err := fields.Text(key)
	if err != nil {
		return "", ConfigError(key, fields.Get(key), "a string")
	}
	return s, nil
}

// durationField returns a key's duration, in Go's notation; 0 if the key is absent or null.
func durationField(fields scan.Fields, key string) (time.Duration, *api.Error) {
	text, e := textField(fields, key)
	if e != nil || text == "" {
		return 0, e
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, ConfigError(key, fields.Get(key), `a duration such as "10m" or "1h30m"`)
	}
	return d, nil
}

// boolField returns a key's boolean; false if the key is absent or null.
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

// ours returns what a prevResult says of Berth's attachment: the name of its host veth, and
// its addresses. If the result has no such name, ours returns nothing, since nothing in it
// is known to be Berth's. A result that cannot be read counts as empty: a result only helps DEL,
// which also works without a result.
func ours(prevResult []byte) (link string, addresses []string) {
	if prevResult == nil { // mostly; the scanner's error would cost ADD more than the rest of its input
		return "", nil
	}
	result, err := scan.Object(prevResult)
	if err != nil {
		return "", nil
	}
	if link = hostVeth(result.Get("interfaces")); link == "" {
		return "", nil
	}
	for _, ip := range objects(result.Get("ips")) {
		cidr, err := ip.Text("address")
		if address, _, _ := strings.Cut(cidr, "/"); err == nil && isAddress(address) {
			addresses = append(addresses, address)
		}
	}
	return link, addresses
}

// hostVeth returns the name of Berth's host veth among a result's interfaces; "" if there
// is none.
func hostVeth(interfaces []byte) string {
	for _, fields := range objects(interfaces) {
		name, err1 := fields.Text("name")
		sandbox, err2 := fields.Text("sandbox")
		if err1 == nil && err2 == nil && sandbox == "" && stamp.IsEnd(name) {
			return name
		}
	}
	return ""
}

// objects returns the objects in an array, and leaves out all other elements.
func objects(raw []byte) []scan.Fields {
	elements, err := scan.Array(raw)
	if err != nil {
		return nil
	}
	var all []scan.Fields
	for _, e := range elements {
		if fields, err := scan.Object(e); err == nil {
			all = append(all, fields)
		}
	}
	return all
}

// isAddress reports whether s has only characters of IP addresses in plain text (RFC 4291,
// section 2.2), and is no longer than such an address can be.
func isAddress(s string) bool {
	if s == "" || len(s) > len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255") {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') && c != '.' && c != ':' {
			return false
		}
	}
	return true
}
