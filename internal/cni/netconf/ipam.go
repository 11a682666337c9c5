package netconf

import (
	"encoding/json"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// berth is the file name of Berth's plugin, which gives no addresses to others.
const berth = "berth-cni"

// setIPAM reads which plugin gives the addresses. An ipam without a type, which libcni and old tools write, has to be empty.
func (c *Conf) setIPAM(fields scan.Fields) *api.Error {
	value := fields.Get("ipam")
	if value == nil || scan.IsNull(value) {
		return nil
	}
	const hint = "name an IPAM plugin by its type, or leave ipam out: then Berth gives addresses of the agent's pools, of which \"pool\" names one"
	ipam, err := scan.Object(value)
	if err != nil {
		return cni.FieldError("ipam", value, hint)
	}
	name := ""
	if kind := ipam.Get("type"); kind != nil && !scan.IsNull(kind) {
		if name, err = scan.String(kind); err != nil || strings.Contains(name, "/") || !cni.IsShowable(name, maxType) {
			return cni.ConfigError("ipam.type", kind, "the file name of an IPAM plugin")
		}
	}
	switch {
	case name == "" && (len(ipam) > 1 || len(ipam) == 1 && ipam.Get("type") == nil):
		return cni.FieldError("ipam", value, hint)
	case name == "":
		return nil
	case name == berth || name == c.Type:
		return cni.ConfigError("ipam.type", scan.AppendString(nil, name), "another plugin than Berth's: leave ipam out, and Berth gives addresses of the agent's pools")
	case c.Pool != "":
		return cni.ConfigError("pool", scan.AppendString(nil, c.Pool), "either pool or ipam: the IPAM plugin gives the addresses")
	}
	config := map[string]json.RawMessage{}
	for _, f := range fields {
		if f.Key != "prevResult" {
			config[f.Key] = json.RawMessage(f.Value)
		}
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return cni.DecodeError(err)
	}
	c.IPAM = &IPAM{Type: name, Config: raw, Folders: []string{DefaultBinDir}}
	if c.Networks != nil {
		c.IPAM.Folders = []string{c.Networks.BinDir}
	}
	return nil
}
