package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// These are the folders in which systemd and NetworkManager look for configurations, in the order
// in which they count.
var folders = []string{"/etc", "/run", "/usr/local/lib", "/usr/lib"}

// setting is a line of a configuration file.
type setting struct{ section, key, value string }

// settings reads a program's configuration: its main file, from the first of the folders that has
// it, and then the files of its drop-in folders in the order of their names. If several folders
// have a file of one name, the first folder's file counts.
func (n *Node) settings(program, file, dropIns string) (all []setting, err error) {
	var files []string
	for _, dir := range folders {
		path := n.host(filepath.Join(dir, program, file))
		if _, err := os.Stat(path); err == nil {
			files = append(files, path)
			break
		}
	}
	named := map[string]string{}
	for _, dir := range slices.Backward(folders) {
		entries, err := os.ReadDir(n.host(filepath.Join(dir, program, dropIns)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".conf") {
				named[e.Name()] = filepath.Join(n.host(filepath.Join(dir, program, dropIns)), e.Name())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		files = append(files, named[name])
	}
	for _, path := range files {
		raw, err := root.ReadFile(path)
		if errors.Is(err, root.ErrIrregular) { // a link to /dev/null masks a file
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, parseSettings(string(raw))...)
	}
	return all, nil
}

// parseSettings reads a file with [SECTIONS] and KEY=VALUE.
func parseSettings(text string) (all []setting) {
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, is := strings.CutPrefix(line, "["); is {
			section = strings.TrimSuffix(name, "]")
			continue
		}
		key, value, is := strings.Cut(line, "=")
		if is && line[0] != '#' && line[0] != ';' {
			all = append(all, setting{section, strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
	return all
}

// managed returns the pods' links that a manager manages. The manager's folder has a file for each
// link, by the link's index. The parameter managed says whether a setting of that file means that.
func (n *Node) managed(folder string, managed func(setting) bool) (all []string, err error) {
	pods, err := podLinks()
	if err != nil {
		return nil, err
	}
	for index, name := range pods {
		raw, err := root.ReadFile(filepath.Join(n.host(folder), strconv.Itoa(index)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(parseSettings(string(raw)), managed) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all, nil
}

// exists reports whether somebody else's file is there. A program that runs has files in /run.
func (n *Node) exists(path string) bool {
	_, err := os.Stat(n.host(path))
	return err == nil
}

// lookNetworkd looks at systemd-networkd's settings and at what it does with pods' links.
func lookNetworkd(_ context.Context, n *Node) Finding {
	if !n.exists("/run/systemd/netif/state") {
		return ok("systemd-networkd does not run")
	}
	links, err := n.managed("/run/systemd/netif/links", func(s setting) bool { return s.key == "ADMIN_STATE" && s.value != "unmanaged" })
	if err != nil {
		return unknown(err)
	}
	if len(links) > 0 {
		return Finding{Bad, "systemd-networkd configures the links of pods: " + some(links),
			"find the .network file that matches them (networkctl status " + links[0] + "), and exclude them: [Match] Name=!b*"}
	}
	all, err := n.settings("systemd", "networkd.conf", "networkd.conf.d")
	if err != nil {
		return unknown(err)
	}
	keeps := map[string]bool{"ManageForeignRoutes": true, "ManageForeignRoutingPolicyRules": true} // by default
	for _, s := range all {
		if _, is := keeps[s.key]; is && s.section == "Network" {
			keeps[s.key] = !slices.Contains([]string{"no", "false", "off", "0", "n", "f"}, strings.ToLower(s.value))
		}
	}
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(keeps)) {
		if keeps[key] {
			wrong = append(wrong, key)
		}
	}
	if len(wrong) == 0 {
		return ok("systemd-networkd leaves others' routes and rules alone")
	}
	return Finding{Warn, "systemd-networkd runs, with " + strings.Join(wrong, "=yes and ") + "=yes",
		`mkdir -p /etc/systemd/networkd.conf.d; printf '[Network]\n` + strings.Join(wrong, `=no\n`) +
			`=no\n' > /etc/systemd/networkd.conf.d/berth.conf; systemctl restart systemd-networkd`}
}

// some returns the first three names, and how many more there are.
func some(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

const unmanage = `printf '[keyfile]\nunmanaged-devices+=driver:veth\n' > /etc/NetworkManager/conf.d/berth.conf; nmcli general reload`

// lookNetworkManager looks at what NetworkManager does with pods' links or, if there are none,
// at its settings.
func lookNetworkManager(_ context.Context, n *Node) Finding {
	if !n.exists("/run/NetworkManager") {
		return ok("NetworkManager does not run")
	}
	links, err := n.managed("/run/NetworkManager/devices", func(s setting) bool { return s.key == "managed" && s.value == "true" })
	if err != nil {
		return unknown(err)
	}
	if len(links) > 0 {
		return Finding{Bad, "NetworkManager manages the links of pods: " + some(links), unmanage}
	}
	all, err := n.settings("NetworkManager", "NetworkManager.conf", "conf.d")
	if err != nil {
		return unknown(err)
	}
	for _, s := range all {
		if strings.HasPrefix(s.key, "unmanaged-devices") && spares(s.value, n.instance()) {
			return ok("NetworkManager leaves pods' links alone: unmanaged-devices=%s", s.value)
		}
	}
	return Finding{Warn, "NetworkManager runs, and no unmanaged-devices names pods' links", unmanage}
}

// spares reports whether a list of NetworkManager's device specs has the links of pods.
func spares(list, instance string) bool {
	pods := "b"
	if instance != "" {
		pods = stamp.Links(instance)
	}
	for _, spec := range strings.FieldsFunc(list, func(r rune) bool { return r == ';' || r == ',' || r == ' ' }) {
		name, isName := strings.CutPrefix(strings.TrimPrefix(spec, "interface-name:"), "=")
		begins, wild := strings.CutSuffix(name, "*")
		switch {
		case spec == "*", spec == "driver:veth", spec == "type:veth":
			return true
		case !isName && wild && strings.HasPrefix(spec, "interface-name:") && strings.HasPrefix(pods, begins):
			return true
		}
	}
	return false
}
