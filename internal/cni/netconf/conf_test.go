package netconf_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
)

func TestParse(t *testing.T) {
	ip := netip.MustParseAddr
	base := netconf.Conf{Version: "1.1.0", Name: "net", Type: "berth-cni", Root: "/", Mode: "routed"}
	with := func(change func(*netconf.Conf)) netconf.Conf { c := base; change(&c); return c }
	for keys, want := range map[string]netconf.Conf{
		``:                base,
		`"cniVersion":""`: with(func(c *netconf.Conf) { c.Version = "0.1.0" }),
		`"root":"/tmp/x"`: with(func(c *netconf.Conf) { c.Root = "/tmp/x" }),
		`"mode":"chained","pool":null,"runtimeConfig":{"ips":[],"mac":""}`: with(func(c *netconf.Conf) { c.Mode = netconf.ModeChained }),
		`"pool":"blue.4"`: with(func(c *netconf.Conf) { c.Pool = "blue.4" }),
		`"mode":"routed"`: base,
		`"mode":""`:       base,
		`"mode":"ipvlan"`: with(func(c *netconf.Conf) { c.Mode = "ipvlan" }),
		`"mode":"bridge","bridge":"br0"`: with(func(c *netconf.Conf) {
			c.Mode, c.Native = "bridge", netconf.Native{Bridge: "br0"}
		}),
		`"mode":"bridge","bridge":"br0","isolated":true,"hairpinMode":true`: with(func(c *netconf.Conf) {
			c.Mode, c.Native = "bridge", netconf.Native{Bridge: "br0", Isolated: true, Hairpin: true}
		}),
		`"mode":"bridge","bridge":"br0","isolated":false,"hairpinMode":null`: with(func(c *netconf.Conf) {
			c.Mode, c.Native = "bridge", netconf.Native{Bridge: "br0"}
		}),
		`"mode":"macvlan","master":"eth1"`: with(func(c *netconf.Conf) {
			c.Mode, c.Native = "macvlan", netconf.Native{Master: "eth1", MacvlanMode: "bridge"}
		}),
		`"master":"eth1.7","macvlanMode":"private","mode":"macvlan"`: with(func(c *netconf.Conf) {
			c.Mode, c.Native = "macvlan", netconf.Native{Master: "eth1.7", MacvlanMode: "private"}
		}),
		`"master":null,"macvlanMode":null`: base,
		`"mtu":68`:                         with(func(c *netconf.Conf) { c.MTU = 68 }),
		`"mtu":65535`:                      with(func(c *netconf.Conf) { c.MTU = 65535 }),
		`"mtu":0`:                          base,
		`"wait":true`:                      with(func(c *netconf.Conf) { c.Wait = true }),
		`"wait":false`:                     base,
		`"gcMinAge":"1h30m"`:               base,
		`"gcMinAge":"0s"`:                  base,
		`"addWait":"5s"`:                   base,
		`"ipam":{}`:                        base,
		`"ipam":{"type":""}`:               base,
		`"ipMasq":false`:                   base,
		`"cni.dev/new-thing":[1]`:          base,
		`"capabilities":{"ips":true},"args":{"cni":{}},"disableCheck":true,"disableGC":true,"loadOnlyInlinedPlugins":true,"cniVersions":[]`:                       base,
		`"root":null,"pool":null,"mode":null,"mtu":null,"wait":null,"addWait":null,"gcMinAge":null,"dns":null,"runtimeConfig":null,"prevResult":null,"ipam":null`: base,
		`"dns":{"nameservers":["10.0.0.1","fd00::1"],"domain":"d","search":["a.b"],"options":["ndots:5"]}`: with(func(c *netconf.Conf) {
			c.DNS = netconf.DNS{Nameservers: []string{"10.0.0.1", "fd00::1"}, Domain: "d", Search: []string{"a.b"}, Options: []string{"ndots:5"}}
		}),
		`"runtimeConfig":{"ips":["10.88.0.7"]}`:                 with(func(c *netconf.Conf) { c.IPs = []netip.Addr{ip("10.88.0.7")} }),
		`"runtimeConfig":{"ips":["fd00::7/64","10.88.0.7/16"]}`: with(func(c *netconf.Conf) { c.IPs = []netip.Addr{ip("fd00::7"), ip("10.88.0.7")} }),
		`"runtimeConfig":{"ips":[],"mac":"","x":[],"y":{}}`:     base,
		`"runtimeConfig":{"portMappings":[]}`:                   base,
		`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":8080},{"HostPort":53,"ContainerPort":5353,"Protocol":"UDP","HostIP":""},{"hostPort":80,"containerPort":8080,"protocol":"tcp","hostIP":null},{"hostPort":1,"containerPort":65535,"protocol":"sctp","hostIP":"fd00::1"}]}`: with(func(c *netconf.Conf) {
			c.Ports = []netconf.Port{
				{Protocol: "tcp", Host: 80, Container: 8080}, {Protocol: "udp", Host: 53, Container: 5353},
				{Protocol: "sctp", HostIP: ip("fd00::1"), Host: 1, Container: 65535},
			}
		}),
		`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80},{"hostPort":80,"containerPort":80,"hostIP":"::"},{"hostPort":80,"containerPort":81,"hostIP":"::1"}]}`: with(func(c *netconf.Conf) {
			c.Ports = []netconf.Port{
				{Protocol: "tcp", Host: 80, Container: 80}, {Protocol: "tcp", HostIP: ip("::"), Host: 80, Container: 80},
				{Protocol: "tcp", HostIP: ip("::1"), Host: 80, Container: 81},
			}
		}),
		`"runtimeConfig":{"bandwidth":{}}`: base,
		`"runtimeConfig":{"bandwidth":{"ingressRate":0,"ingressBurst":0,"egressRate":null,"x":[]}}`: base,
		`"runtimeConfig":{"bandwidth":{"IngressRate":1000000,"IngressBurst":4294967295,"EgressRate":0,"EgressBurst":0}}`: with(func(c *netconf.Conf) {
			c.Bandwidth.Ingress = netconf.Rate{Rate: 1_000_000, Burst: 1<<32 - 1} // as containerd writes it
		}),
		`"runtimeConfig":{"bandwidth":{"egressRate":8,"egressBurst":34359738360,"ingressRate":9223372036854775807,"ingressBurst":1}}`: with(func(c *netconf.Conf) {
			c.Bandwidth = netconf.Bandwidth{Ingress: netconf.Rate{Rate: 1<<63 - 1, Burst: 1}, Egress: netconf.Rate{Rate: 8, Burst: (1<<32 - 1) * 8}}
		}),
		`"runtimeConfig":{"mac":"02:00:5E:10:00:ff"}`: with(func(c *netconf.Conf) { c.MAC = []byte{2, 0, 0x5e, 0x10, 0, 0xff} }),
		`"prevResult":{"a": 1}`:                       with(func(c *netconf.Conf) { c.PrevResult = []byte(`{"a": 1}`) }),
	} {
		got, e := netconf.Parse([]byte(conf(keys)))
		if e != nil {
			t.Errorf("%s: %v", keys, e)
		} else if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", keys, *got, want)
		}
	}
}

// conf makes a configuration of the keys. It adds cniVersion, name and type unless keys has
// them.
func conf(keys string) string {
	out := keys
	for _, d := range []string{`"cniVersion":"1.1.0"`, `"name":"net"`, `"type":"berth-cni"`} {
		if name, _, _ := strings.Cut(d, ":"); !strings.Contains(","+keys, ","+name) {
			out += "," + d
		}
	}
	return "{" + strings.TrimPrefix(out, ",") + "}"
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("x", 200)
	for _, c := range []struct {
		raw  string
		code uint
		want string // in msg and details
	}{
		{``, 6, "found the end of the input"},
		{`null`, 6, "expected an object"},
		{`[]`, 6, "expected an object"},
		{conf(``) + `{}`, 6, "expected nothing more"},
		{"{\"name\":\"\xff\"}", 6, "not UTF-8"},
		{`{"x":` + strings.Repeat("[", 1000), 6, "nested deeper"},
		{conf(`"name":"a","name":"b"`), 6, `key "name" appears twice`},
		{conf(`"cniVersion":"2.0.0"`), 1, `"2.0.0"; supported are 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0`},
		{conf(`"cniVersion":"1.1"`), 1, `"1.1"`},
		{conf(`"cniVersion":1.1`), 7, "cniVersion is 1.1; expected a string"},
		{conf(`"name":null`), 7, "name is missing"},
		{conf(`"name":""`), 7, "name is missing"},
		{conf(`"name":"../x"`), 7, `name is "../x"`},
		{conf(`"name":"-x"`), 7, `name is "-x"`},
		{conf(`"name":"` + long + `"`), 7, "(200 bytes)"},
		{conf(`"type":""`), 7, "type"},
		{conf(`"type":null`), 7, "type is missing"},
		{conf(`"type":"../../bin/sh"`), 7, "type"},
		{conf(`"root":"relative"`), 7, `root is "relative"; expected an absolute path`},
		{conf(`"root":"/a\u0000b"`), 7, "root"},
		{conf(`"root":5`), 7, "root is 5; expected a string"},
		{conf(`"pool":"a/b"`), 7, "pool"},
		{conf(`"mode":"chained","pool":"a"`), 2, `pool`},
		{conf(`"mode":"chained","mtu":1400`), 2, `mtu`},
		{conf(`"mode":"chained","ipam":{"type":"host-local"}`), 2, `ipam`},
		{conf(`"mode":"chained","dns":{}`), 2, `dns`},
		{conf(`"mode":"chained","delegates":[{"type":"ptp"}]`), 2, `mode`},
		{conf(`"mode":"chained","defaultNetworks":["a"]`), 2, `defaultNetworks`},
		{conf(`"mode":"chained","runtimeConfig":{"ips":["10.0.0.1"]}`), 2, `runtimeConfig.ips`},
		{conf(`"mode":"chained","runtimeConfig":{"mac":"02:00:5e:10:00:01"}`), 2, `runtimeConfig.mac`},
		{conf(`"pool":{}`), 7, "pool is {}"},
		{conf(`"mode":1`), 7, "mode is 1"},
		{conf(`"mode":"macvlan"`), 7, `master is missing; expected "eth1"`},
		{conf(`"mode":"macvlan","master":null`), 7, "master is missing"},
		{conf(`"mode":"macvlan","master":""`), 7, `master is ""; expected the name of a link of the node`},
		{conf(`"mode":"macvlan","master":"a/b"`), 7, `master is "a/b"`},
		{conf(`"mode":"macvlan","master":"a b"`), 7, `master is "a b"`},
		{conf(`"mode":"macvlan","master":".."`), 7, `master is ".."`},
		{conf(`"mode":"macvlan","master":"sixteen-letters-"`), 7, `master is "sixteen-letters-"`},
		{conf(`"mode":"macvlan","master":5`), 7, "master is 5"},
		{conf(`"mode":"macvlan","master":"eth1","macvlanMode":"source"`), 7, `macvlanMode is "source"; expected bridge, private, vepa, passthru`},
		{conf(`"master":"eth1"`), 2, `"master": "eth1"; only mode macvlan has this key, and the mode is routed`},
		{conf(`"mode":"x","macvlanMode":"bridge"`), 2, "only mode macvlan has this key, and the mode is x"},
		{conf(`"mode":"bridge"`), 7, `bridge is missing; expected "br0"`},
		{conf(`"mode":"bridge","bridge":"a/b"`), 7, `bridge is "a/b"; expected the name of a link of the node`},
		{conf(`"mode":"bridge","bridge":"br0","isolated":1`), 7, `isolated is 1; expected true or false`},
		{conf(`"mode":"bridge","bridge":"br0","hairpinMode":"true"`), 7, `hairpinMode is "true"; expected true or false`},
		{conf(`"mode":"bridge","bridge":"br0","master":"eth1"`), 2, `only mode macvlan has this key, and the mode is bridge`},
		{conf(`"mode":"macvlan","master":"eth1","isolated":false`), 2, `only mode bridge has this key, and the mode is macvlan`},
		{conf(`"bridge":"br0"`), 2, `"bridge": "br0"; only mode bridge has this key, and the mode is routed`},
		{conf(`"delegates":[{"type":"ptp"}],"bridge":"br0"`), 2, "another plugin makes the first interface"},
		{conf(`"delegates":[{"type":"ptp"}],"master":"eth1"`), 2, "another plugin makes the first interface"},
		{conf(`"mtu":67`), 7, "mtu is 67"},
		{conf(`"mtu":65536`), 7, "mtu is 65536"},
		{conf(`"mtu":-1`), 7, "mtu is -1"},
		{conf(`"mtu":1500.5`), 7, "mtu is 1500.5"},
		{conf(`"mtu":"1500"`), 7, `mtu is "1500"`},
		{conf(`"mtu":99999999999999999999`), 7, "mtu"},
		{conf(`"gcMinAge":"1 h"`), 7, `gcMinAge is "1 h"; expected a duration such as "10m"`},
		{conf(`"gcMinAge":"-1s"`), 7, `gcMinAge is "-1s"; expected a duration`},
		{conf(`"gcMinAge":60`), 7, `gcMinAge is 60; expected a string`},
		{conf(`"wait":1`), 7, "wait is 1; expected true or false"},
		{conf(`"ipam":{"type":"a/b"}`), 7, `ipam.type is "a/b"; expected the file name of an IPAM plugin`},
		{conf(`"ipam":{"type":1}`), 7, "ipam.type is 1"},
		{conf(`"ipam":{"type":"berth-cni"}`), 7, "expected another plugin than Berth's"},
		{conf(`"ipam":{"type":"host-local"},"pool":"blue"`), 7, `pool is "blue"; expected either pool or ipam`},
		{conf(`"ipam":{"type":"","range":""}`), 2, "name an IPAM plugin by its type"},
		{conf(`"ipam":{"range":""}`), 2, "ipam"},
		{conf(`"ipam":"x"`), 2, "ipam"},
		{conf(`"ipMasq":true`), 2, "whole node"},
		{conf(`"plugins":[]`), 2, "a whole plugin list"},
		{`{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"berth-cni"}]}`, 2, "a whole plugin list"},
		{conf(`"Pool":"a"`), 2, `perhaps "pool" is meant`},
		{conf(`"gcMinage":"1h"`), 2, `perhaps "gcMinAge" is meant`},
		{conf(`"runtimeConfg":{}`), 2, `perhaps "runtimeConfig" is meant`},
		{conf(`"x":null`), 2, `"x": null; remove it`},
		{conf(`"vlan":"` + long + `"`), 2, "(202 bytes)"},
		{conf(`"prevResult":[]`), 7, "prevResult is []"},
		{conf(`"dns":[]`), 7, "dns is []"},
		{conf(`"dns":{"nameservers":["a"]}`), 7, `dns.nameservers has "a"`},
		{conf(`"dns":{"nameservers":"10.0.0.1"}`), 7, "dns.nameservers"},
		{conf(`"dns":{"search":["a\u001b[2Jb"]}`), 7, "dns.search"},
		{conf(`"dns":{"search":[` + strings.Repeat(`"`+long+`",`, 10) + `"` + strings.Repeat("x", 49) + `"]}`), 7, "expected strings of at most 2048 bytes together"},
		{conf(`"dns":{"domain":7}`), 7, "dns.domain"},
		{conf(`"dns":{"servers":[]}`), 2, `"dns.servers": []`},
		{conf(`"runtimeConfig":[]`), 7, "runtimeConfig is []"},
		{conf(`"runtimeConfig":{"bandwidth":[]}`), 7, "runtimeConfig.bandwidth is []; expected an object"},
		{conf(`"runtimeConfig":{"bandwidth":{"ingressRate":-8,"ingressBurst":8}}`), 7, "bandwidth.ingressRate is -8; expected whole bits, 0 or from 8 to"},
		{conf(`"runtimeConfig":{"bandwidth":{"egressRate":7,"egressBurst":8}}`), 7, "bandwidth.egressRate is 7"},
		{conf(`"runtimeConfig":{"bandwidth":{"egressRate":9223372036854775808,"egressBurst":8}}`), 7, "egressRate is 9223372036854775808"},
		{conf(`"runtimeConfig":{"bandwidth":{"egressRate":1e6,"egressBurst":8}}`), 7, "egressRate is 1e6"},
		{conf(`"runtimeConfig":{"bandwidth":{"ingressRate":"1M","ingressBurst":8}}`), 7, `ingressRate is "1M"`},
		{conf(`"runtimeConfig":{"bandwidth":{"ingressRate":1000,"ingressBurst":34359738361}}`), 7, "ingressBurst is 34359738361; expected whole bits, 0 or from 1 to 34359738360"},
		{conf(`"runtimeConfig":{"bandwidth":{"ingressRate":1000}}`), 7, "bandwidth.ingressBurst is missing; expected the bits that may exceed ingressRate at once"},
		{conf(`"runtimeConfig":{"bandwidth":{"egressRate":1000,"ingressBurst":1000}}`), 7, "bandwidth.ingressRate is missing"},
		{conf(`"runtimeConfig":{"bandwidth":{"egressRate":1000,"egressBurst":0}}`), 7, "bandwidth.egressBurst is missing"},
		{conf(`"runtimeConfig":{"bandwidth":{"egressRate":0,"egressBurst":1000}}`), 7, "bandwidth.egressRate is missing"},
		{conf(`"runtimeConfig":{"bandwidth":{"shapedSubnets":["10.0.0.0/8"]}}`), 2, "bandwidth.shapedSubnets"},
		{conf(`"runtimeConfig":{"portMappings":{}}`), 7, "portMappings is {}; expected a list"},
		{conf(`"runtimeConfig":{"portMappings":[80]}`), 7, "portMappings is 80; expected objects"},
		{conf(`"runtimeConfig":{"portMappings":[` + strings.Repeat("80,", 512) + `80]}`), 7, "expected a list of at most 512 mappings"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80}]}`), 7, "portMappings.containerPort is missing"},
		{conf(`"runtimeConfig":{"portMappings":[{"containerPort":80}]}`), 7, "portMappings.hostPort is missing"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":0,"containerPort":80}]}`), 7, "hostPort is 0; expected a number from 1 to 65535"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":65536,"containerPort":80}]}`), 7, "hostPort is 65536"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":"80","containerPort":80}]}`), 7, `hostPort is "80"`},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":-1,"containerPort":80}]}`), 7, "hostPort is -1"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":1.5}]}`), 7, "containerPort is 1.5"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]}`), 7, "expected tcp, udp or sctp"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"node"}]}`), 7, `hostIP is "node"`},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"224.0.0.1"}]}`), 7, `hostIP is "224.0.0.1"`},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"fe80::1%eth0"}]}`), 7, "hostIP"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"::ffff:10.0.0.1"}]}`), 7, "hostIP"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"label":"web"}]}`), 2, `portMappings.label": "web"`},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80},{"hostPort":80,"containerPort":81,"protocol":"TCP"}]}`), 7, "each host port once"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"0.0.0.0"},{"hostPort":80,"containerPort":81}]}`), 7, "each host port once"},
		{conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80},{"hostPort":80,"containerPort":81,"hostIP":"::"}]}`), 7, "each host port once"},
		{conf(`"runtimeConfig":{"ips":"10.0.0.1"}`), 7, "runtimeConfig.ips"},
		{conf(`"runtimeConfig":{"ips":[1]}`), 7, "runtimeConfig.ips is 1"},
		{conf(`"runtimeConfig":{"ips":["10.0.0.1","10.0.0.2"]}`), 7, `"10.0.0.2"`},
		{conf(`"runtimeConfig":{"ips":["10.0.0.1","10.0.0.1"]}`), 7, `"10.0.0.1"`},
		{conf(`"runtimeConfig":{"ips":["10.0.0.1","fd00::1","fd00::2"]}`), 7, "runtimeConfig.ips"},
		{conf(`"runtimeConfig":{"ips":["fe80::1%eth0"]}`), 7, "runtimeConfig.ips"},
		{conf(`"runtimeConfig":{"ips":["::ffff:10.0.0.1"]}`), 7, "runtimeConfig.ips"},
		{conf(`"runtimeConfig":{"ips":["0.0.0.0"]}`), 7, "runtimeConfig.ips"},
		{conf(`"runtimeConfig":{"ips":["224.0.0.1"]}`), 7, "runtimeConfig.ips"},
		{conf(`"runtimeConfig":{"ips":["127.0.0.1"]}`), 7, "runtimeConfig.ips"},
		{conf(`"runtimeConfig":{"ips":["10.0.0.1/33"]}`), 7, "runtimeConfig.ips"},
		{conf(`"mtu":1279,"runtimeConfig":{"ips":["fd00::1"]}`), 7, "mtu is 1279; IPv6 (fd00::1 is requested)"},
		{conf(`"runtimeConfig":{"ips":["fd00::1"]},"mtu":1279`), 7, "mtu is 1279; IPv6 (fd00::1 is requested)"},
		{conf(`"runtimeConfig":{"mac":"00:00:00:00:00:00"}`), 7, "runtimeConfig.mac"},
		{conf(`"runtimeConfig":{"mac":"ff:ff:ff:ff:ff:ff"}`), 7, "runtimeConfig.mac"},
		{conf(`"runtimeConfig":{"mac":"01:00:5e:00:00:01"}`), 7, "runtimeConfig.mac"},
		{conf(`"runtimeConfig":{"mac":"02:00:5e:10:00:00:00:01"}`), 7, "runtimeConfig.mac"},
		{conf(`"runtimeConfig":{"mac":"02-00-5e-10-00-01"}`), 7, "runtimeConfig.mac"},
		{conf(`"runtimeConfig":{"mac":"2:0:5e:10:0:1"}`), 7, "runtimeConfig.mac"},
		{conf(`"runtimeConfig":{"mac":2}`), 7, "runtimeConfig.mac"},
	} {
		got, e := netconf.Parse([]byte(c.raw))
		if e == nil {
			t.Errorf("%.200s: accepted as %+v", c.raw, got)
			continue
		}
		if e.Code != c.code || !strings.Contains(e.Error(), c.want) {
			t.Errorf("%.200s:\n got %d %v\nwant %d %s", c.raw, e.Code, e, c.code, c.want)
		}
		if e.Msg == "" || e.Details == "" || len(e.Details) > 600 {
			t.Errorf("%.200s: message %q, details %q", c.raw, e.Msg, e.Details)
		}
		if _, key, ok := strings.Cut(e.Msg, ": "); ok && strings.Contains(e.Details, key) {
			t.Errorf("%.200s: %q says %s twice", c.raw, e, key)
		}
	}
}

// An IPAM plugin gets the whole configuration as it is, but for prevResult, and reads the requested addresses itself.
func TestIPAM(t *testing.T) {
	const ipam, runtime = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/16"}]]}`, `"runtimeConfig":{"ips":["10.1.0.7/16","10.1.0.8/16","x"],"mac":"02:00:00:00:00:01"}`
	c, e := netconf.Parse([]byte(conf(ipam + "," + runtime + `,"prevResult":{"ips":[]},"mtu":1400,"binDir":"/plugins","args":{"cni":{"ips":["10.1.0.9"]}}`)))
	if e != nil {
		t.Fatal(e)
	}
	want := `{"args":{"cni":{"ips":["10.1.0.9"]}},"binDir":"/plugins","cniVersion":"1.1.0",` + ipam + `,"mtu":1400,"name":"net",` + runtime + `,"type":"berth-cni"}`
	if got := c.IPAM; got.Type != "host-local" || string(got.Config) != want || !slices.Equal(got.Folders, []string{"/plugins"}) || c.IPs != nil || c.MAC == nil {
		t.Errorf("IPAM plugin %s of %v gets\n%s\nwant\n%s\nand Berth has %+v", got.Type, got.Folders, got.Config, want, c)
	}
	if c, e = netconf.Parse([]byte(conf(ipam))); e != nil || !slices.Equal(c.IPAM.Folders, []string{netconf.DefaultBinDir}) {
		t.Errorf("without binDir: %+v, %v", c, e)
	}
}

// No input makes Parse panic. An accepted configuration keeps what Conf promises, and
// ParseHead and ParseDel read the same from it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		``, `{}`, conf(``), conf(`"mtu":1500,"wait":true,"root":"/x","pool":"p"`), conf(`"dns":{"nameservers":["::1"]}`),
		conf(`"mode":"macvlan","master":"eth1","macvlanMode":"vepa"`), conf(`"mode":"bridge","bridge":"br0","isolated":true`),
		conf(`"runtimeConfig":{"ips":["10.0.0.1/8","fd00::1"],"mac":"02:00:00:00:00:01"}`), conf(`"ipam":{"type":""}`), conf(`"ipam":{"type":"static","addresses":[]},"mtu":1400`),
		conf(`"prevResult":{"interfaces":[{"name":"babcdefghij2345"},null,{"name":5}]}`), conf(`"cni.dev/x":{}`),
		conf(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"udp","hostIP":"::1"}]}`),
		conf(`"name":"a","name":"b"`), `{"name":"\ud800"}`, conf(`"mtu":1e3`), conf(`"runtimeConfig":{"ips":["::%"]}`),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, e := netconf.Parse(raw)
		if e != nil {
			if e.Code < 1 || e.Code > 7 || e.Msg == "" || e.Details == "" {
				t.Fatalf("error %+v", e)
			}
			return
		}
		if cni.CheckNetworkName(c.Name) != nil || cni.CheckVersion("ADD", c.Version) != nil || c.Root == "" || len(c.IPs) > 2 ||
			c.MTU != 0 && (c.MTU < netconf.MinMTU4 || c.MTU > netconf.MaxMTU) || len(c.MAC) != 0 && len(c.MAC) != 6 {
			t.Fatalf("accepted %+v", c)
		}
		if c.IPAM != nil { // the mode reads the plugin's configuration again when it knows the addresses
			again, e := netconf.Parse(c.IPAM.Config)
			if e != nil || c.Pool != "" || c.IPs != nil || again.IPAM == nil || !bytes.Equal(again.IPAM.Config, c.IPAM.Config) || again.Mode != c.Mode || again.MTU != c.MTU {
				t.Fatalf("accepted %+v, and the IPAM plugin's configuration as %+v, %v", c, again, e)
			}
		}
		for name, parse := range map[string]func() (cni.Head, error){
			"ParseHead": func() (cni.Head, error) { h, e := cni.ParseHead(raw); return h, asError(e) },
			"ParseDel":  func() (cni.Head, error) { h, e := cni.ParseDel(raw); return h, asError(e) },
		} {
			h, err := parse()
			if err != nil || h.Name != c.Name || h.Version != c.Version || h.Root != c.Root || h.Wait != c.Wait {
				t.Fatalf("%s: %+v, %v; Parse has %+v", name, h, err, c)
			}
		}
	})
}

// asError turns a nil *api.Error into a nil error.
func asError[E interface {
	comparable
	error
}](e E) error {
	var none E
	if e == none {
		return nil
	}
	return e
}

func ExampleParse() {
	_, e := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"net","type":"berth-cni","isGateway":true}`))
	fmt.Println(e.Code, e)
	// Output: 2 unsupported key in the configuration: "isGateway": true; remove it
}
