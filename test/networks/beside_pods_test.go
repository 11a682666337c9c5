package networks

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-net/berth/test/beside"
)

// usual is the default network of most pods.
func (b *both) usual() string {
	return `{"cniVersion":"1.0.0","name":"usual","type":"ptp","mtu":1400,"dns":{"nameservers":["192.0.2.53"],"search":["example.org"]},` + b.local("10.10.0.0/24") + `}`
}

// routed is the ipam of a network with host-local, and a route.
func (b *both) routed(subnet, route string) string {
	return fmt.Sprintf(`"ipam":{"type":"host-local","ranges":[[{"subnet":%q}]],"routes":[{"dst":%q}],"dataDir":%q}`, subnet, route, b.disk)
}

// furnish makes the definitions and the files of the comparison.
func (b *both) furnish() {
	static := `"ipam":{"type":"static","addresses":[{"address":"10.20.0.9/24","gateway":"10.20.0.1"}],"routes":[{"dst":"172.16.0.0/12"}]}`
	for name, config := range map[string]string{
		"ptp":     `{"cniVersion":"1.0.0","name":"ptp-net","type":"ptp",` + b.local("10.11.0.0/24") + `}`,
		"bridge":  `{"cniVersion":"1.0.0","type":"bridge","bridge":"br9","mtu":1300,` + b.routed("10.12.0.0/24", "192.168.0.0/16") + `}`,
		"macvlan": `{"cniVersion":"1.0.0","name":"macvlan","type":"macvlan","master":"br8","mode":"bridge","capabilities":{"mac":true},` + b.local("10.13.0.0/24") + `}`,
		"list": `{"cniVersion":"1.0.0","name":"list","plugins":[{"type":"bridge","bridge":"br9",` + b.local("10.14.0.0/24") + `},` +
			`{"type":"tuning","capabilities":{"mac":true},"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}]}`,
		"nocheck": `{"cniVersion":"1.0.0","name":"nocheck","disableCheck":true,"plugins":[{"type":"bridge","bridge":"br9",` + b.local("10.15.0.0/24") + `}]}`,
		"ips":     `{"cniVersion":"1.0.0","name":"ips","type":"bridge","bridge":"br9","capabilities":{"ips":true},"ipam":{"type":"static"}}`,
		"static":  `{"cniVersion":"1.0.0","name":"static","type":"macvlan","master":"br9",` + static + `}`,
		"dual":    fmt.Sprintf(`{"cniVersion":"1.0.0","name":"dual","type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.16.0.0/24"}],[{"subnet":"fd00:16::/64"}]],"routes":[{"dst":"fd00:99::/64"}],"dataDir":%q}}`, b.disk),
		"noipam":  `{"cniVersion":"1.0.0","name":"noipam","type":"macvlan","master":"br8"}`,
		"shaped": `{"cniVersion":"1.0.0","name":"shaped","plugins":[{"type":"ptp",` + b.local("10.18.0.0/24") + `},` +
			`{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`,
		"v031": `{"cniVersion":"0.3.1","name":"v031","type":"ptp",` + b.local("10.21.0.0/24") + `}`,
		"v040": `{"cniVersion":"0.4.0","name":"v040","plugins":[{"type":"bridge","bridge":"br9",` + b.local("10.22.0.0/24") + `},{"type":"tuning","mtu":1200}]}`,
		"v110": `{"cniVersion":"1.1.0","name":"v110","type":"ptp",` + b.local("10.23.0.0/24") + `}`,

		"filed": "", "filed-list": "", "broken": `{"cniVersion":"1.0.0"`, "typeless": `{"cniVersion":"1.0.0","name":"typeless"}`, "absent": `{"cniVersion":"1.0.0","type":"absent"}`,

		"other/elsewhere":       `{"cniVersion":"1.0.0","name":"elsewhere","type":"macvlan","master":"br8",` + b.local("10.24.0.0/24") + `}`,
		"kube-system/main":      `{"cniVersion":"1.0.0","name":"main","type":"ptp","capabilities":{"ips":true},` + b.routed("10.25.0.0/24", "0.0.0.0/0") + `}`,
		"kube-system/each":      `{"cniVersion":"1.0.0","name":"each","type":"bridge","bridge":"br9",` + b.local("10.26.0.0/24") + `}`,
		"kube-system/each-list": `{"cniVersion":"0.4.0","name":"each-list","plugins":[{"type":"macvlan","master":"br8",` + b.local("10.27.0.0/24") + `}]}`,
	} {
		b.define(name, config)
	}
	for file, config := range map[string]string{
		"10-filed.conf":     `{"cniVersion":"1.0.0","name":"filed","type":"ptp",` + b.local("10.30.0.0/24") + `}`,
		"20-list.conflist":  `{"cniVersion":"1.0.0","name":"filed-list","plugins":[{"type":"bridge","bridge":"br9",` + b.local("10.31.0.0/24") + `},{"type":"tuning","mtu":1250}]}`,
		"30-main.conf":      `{"cniVersion":"0.4.0","name":"file-main","type":"ptp",` + b.local("10.32.0.0/24") + `}`,
		"40-main.conflist":  `{"cniVersion":"1.0.0","name":"file-list","plugins":[{"type":"ptp",` + b.local("10.33.0.0/24") + `}]}`,
		"50-ignored.readme": `not a configuration`,
	} {
		must(b.t, os.WriteFile(filepath.Join(b.confs, file), []byte(config), 0o600))
	}
}

// pods are the pods of the comparison.
func pods(b *both) map[string]pod {
	main := `,"clusterNetwork":"main"`
	return map[string]pod{
		"asks for nothing": {},
		"short form":       {networks: "ptp, default/bridge ,macvlan"},
		"names":            {networks: "ptp@data,bridge@net1,macvlan"},
		"JSON form":        {networks: `[{"name":"ptp","interface":"data"},{"name":"elsewhere","namespace":"other"},{"name":"bridge"}]`},
		"one twice":        {networks: "bridge,bridge,bridge"},
		"mac":              {networks: `[{"name":"macvlan","mac":"` + beside.Asked + `00:07"},{"name":"list","mac":"` + beside.Asked + `00:08"}]`},
		"ips":              {networks: `[{"name":"ips","ips":["10.19.0.7/24","fd00:19::7/64"]},{"name":"ips","ips":["10.19.0.8/24"],"interface":"second"}]`},
		"static":           {networks: "static"},
		"both families":    {networks: "dual"},
		"no addresses":     {networks: "noipam"},
		"bandwidth":        {networks: `[{"name":"shaped","bandwidth":{"ingressRate":1000000,"ingressBurst":80000,"egressRate":2000000,"egressBurst":90000}}]`},
		"cni-args":         {networks: `[{"name":"bridge","cni-args":{"color":"blue","deep":{"er":[1,2]}}},{"name":"list","cni-args":{"color":"red"}}]`},
		"list":             {networks: "list"},
		"disableCheck":     {networks: "nocheck"},
		"old versions":     {networks: "v031,v040,v110"},
		"files":            {networks: "filed,filed-list"},
		"another default":  {first: "main", networks: "ptp"},
		"default by JSON":  {first: `[{"name":"elsewhere","namespace":"other"}]`, networks: "ptp"},
		"default of 0.4.0": {first: "each-list"},

		"three delegates": {networks: "ptp", keys: `,"delegates":[` + b.usual() + `,` +
			`{"cniVersion":"0.4.0","name":"two","plugins":[{"type":"bridge","bridge":"br9",` + b.local("10.41.0.0/24") + `},{"type":"tuning","mtu":1210}]},` +
			`{"cniVersion":"1.0.0","name":"three","type":"macvlan","master":"br8",` + b.local("10.42.0.0/24") + `}]`},
		"delegate list":   {keys: `,"delegates":[{"cniVersion":"1.0.0","name":"first-list","plugins":[{"type":"ptp",` + b.local("10.43.0.0/24") + `},{"type":"tuning","mtu":1210}]}]`},
		"runtimeConfig":   {networks: "ips", keys: main + `,"capabilities":{"ips":true},"runtimeConfig":{"ips":["10.25.0.77/24"]}`},
		"cluster":         {keys: main},
		"cluster asks":    {keys: main, networks: "ptp,bridge@data"},
		"cluster file":    {keys: `,"clusterNetwork":"file-main"`, networks: "ptp"},
		"cluster list":    {keys: `,"clusterNetwork":"file-list"`},
		"cluster path":    {keys: fmt.Sprintf(`,"clusterNetwork":%q`, filepath.Join(b.confs, "30-main.conf"))},
		"cluster lists":   {keys: fmt.Sprintf(`,"clusterNetwork":%q`, filepath.Join(b.confs, "40-main.conflist"))},
		"for each pod":    {keys: main + `,"defaultNetworks":["each","each-list","filed"]`, networks: "ptp,macvlan@data"},
		"system":          {namespace: "kube-system", keys: main + `,"defaultNetworks":["each"]`, networks: "each-list"},
		"system of its":   {namespace: "default", keys: main + `,"defaultNetworks":["each"],"systemNamespaces":["default"]`},
		"multusNamespace": {keys: `,"multusNamespace":"other","clusterNetwork":"elsewhere"`},

		"version 0.3.1": {version: "0.3.1", networks: "bridge,v040"},
		"version 0.4.0": {version: "0.4.0", networks: "bridge,v031"},
		"version 1.1.0": {version: "1.1.0", networks: "bridge,v031"},

		"isolated":        {keys: main + `,"namespaceIsolation":true`, networks: "other/elsewhere"},
		"isolated global": {keys: main + `,"namespaceIsolation":true,"globalNamespaces":"default, other"`, networks: "other/elsewhere"},

		"mac without the capability": {networks: `[{"name":"noipam","mac":"` + beside.Asked + `00:09"}]`},
		"ips without the capability": {networks: `[{"name":"bridge","ips":["10.12.0.99"]}]`},
		"default-route":              {networks: `[{"name":"ptp","default-route":["10.11.0.1"]}]`},
		"default-route taken":        {keys: main, networks: `[{"name":"ptp","default-route":["10.11.0.1"]},{"name":"bridge"}]`},
		"same interface":             {networks: "ptp@data,bridge@data"},
		"interface of the default":   {networks: "ptp@eth0"},
		"unknown definition":         {networks: "ptp,none"},
		"unknown namespace":          {networks: "nowhere/ptp"},
		"unknown default":            {first: "none"},
		"two defaults":               {first: "main,each"},
		"broken definition":          {networks: "ptp,broken"},
		"definition without type":    {networks: "typeless"},
		"plugin that is not there":   {networks: "ptp,absent"},
		"half a list":                {networks: `[{"name":"ptp"}`},
		"unknown key":                {networks: `[{"name":"ptp","inteface":"data"}]`},
		"without a name":             {networks: `[{"interface":"data"}]`},
		"two slashes":                {networks: "a/b/ptp"},
		"empty element":              {networks: "ptp,,bridge"},
		"long interface":             {networks: "ptp@sixteen-letters-"},
		"bad mac":                    {networks: `[{"name":"macvlan","mac":"02:00"}]`},
		"bad address":                {networks: `[{"name":"ips","ips":["10.19.0.777"]}]`},
	}
}
