package packages

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// A deb is installed, upgraded under a pod that is attached, removed and purged. The pod's
// connection goes on meanwhile, and in the end nothing is left.
func TestDeb(t *testing.T) {
	d := newDebian(t)
	former, next := d.bring("0.0.1", "berth_*.deb"), d.bring("0.0.2", "berth_*.deb")
	d.must("mkdir -p /opt/cni/bin /etc/cni/net.d") // a runtime's
	files, node := d.files(), nettest.Snapshot(t, nil).Without("sysctl")

	// The installation starts nothing, and says what comes next.
	d.must("dpkg -i " + former + " && dpkg -P berth")
	nettest.Same(t, files, d.files(), "dpkg -P of a package that was never used left files")
	d.must("dpkg -i "+former, "nothing is started yet", "systemctl enable --now berthd")
	nettest.Same(t, node, nettest.Snapshot(t, nil).Without("sysctl"), "dpkg -i changed the node")
	d.must("berth --version && berthd --version && kubectl-berth --version", "berth version v0.0.1", "berthd version v0.0.1", "kubectl berth version v0.0.1")
	d.must("berthd --check-config", "the configuration is fine")
	d.must("bash -n /usr/share/bash-completion/completions/berth")
	d.must("gzip -dc /usr/share/man/man8/berthd.8.gz /usr/share/man/man1/berth-uninstall.1.gz", "BERTHD", "dry-run", "Berth v0.0.1")
	d.must("berth-runner --version && gzip -dc /usr/share/man/man8/berth-runner.8.gz", "berth-runner version v0.0.1", "BERTH")
	for _, program := range []string{"berth", "berthd", "berth-cni", "berth-runner"} {
		d.must("test -x /usr/bin/" + program)
	}

	a := d.start()
	d.must("berth install", "/opt/cni/bin/berth-cni", "/etc/cni/net.d/10-berth.conflist")
	d.must("sed -i 's/^#logLevel: info/logLevel: debug/' /etc/berth/berthd.yaml")
	pod := nettest.Pod(t)
	at := d.plugin("ADD", "c1", pod)
	talk := programs.Converse(t, pod, at)
	talk.GoesOn("before the upgrade")

	// The upgrade keeps the configuration, replaces the plugin that is in place, and leaves
	// the restart to systemd, which is not here.
	edited := d.read("/etc/berth/berthd.yaml")
	conflist := []byte(strings.ReplaceAll(string(d.read("/etc/cni/net.d/10-berth.conflist")), `"mac": true`, `"mac": false`))
	must(t, os.WriteFile(d.dir+"/etc/cni/net.d/10-berth.conflist", conflist, 0o644))
	d.must("dpkg -i "+next, "/opt/cni/bin/berth-cni", "restart berthd; its former version still runs")
	if !bytes.Equal(edited, d.read("/etc/berth/berthd.yaml")) || !bytes.Equal(conflist, d.read("/etc/cni/net.d/10-berth.conflist")) {
		t.Error("the upgrade changed configuration that somebody has edited")
	}
	d.same("/usr/bin/berth-cni", "/opt/cni/bin/berth-cni")
	d.must("berth version", "berth v0.0.2", "berthd v0.0.1")
	talk.GoesOn("after the upgrade")
	a.stop()
	talk.GoesOn("without an agent")
	a = d.start()
	d.must("berth version", "berth v0.0.2", "berthd v0.0.2")
	talk.GoesOn("with the next agent")

	// The way back is the same.
	a.stop()
	d.must("dpkg -i "+former, "/opt/cni/bin/berth-cni", "no agent runs", "systemctl enable --now berthd")
	a = d.start()
	d.must("berth version", "berth v0.0.1", "berthd v0.0.1")
	talk.GoesOn("with the former agent again")
	d.must("dpkg -i " + next)

	// A package whose own configuration differs leaves an edited configuration as it is, and asks
	// nothing: whoever runs dpkg may have no terminal.
	another := d.reconfigured(next)
	d.must("dpkg -i " + another)
	if !bytes.Equal(edited, d.read("/etc/berth/berthd.yaml")) {
		t.Error("the upgrade to a package with another configuration changed one that somebody has edited")
	}
	d.must("grep '^# Another one' /usr/share/berth/berthd.yaml")
	d.must("rm " + another + "; dpkg -i " + next)

	// With a configuration with which the agent would not start, dpkg does not restart the agent.
	must(t, os.WriteFile(d.dir+"/etc/berth/berthd.yaml", append([]byte("cooldwon: 1s\n"), edited...), 0o644))
	if said := d.must("dpkg -i "+next, `unknown key "cooldwon"`, "is not\nrestarted"); strings.Contains(said, "restart berthd;") {
		t.Errorf("dpkg -i restarts an agent that could not start:\n%s", said)
	}
	must(t, os.WriteFile(d.dir+"/etc/berth/berthd.yaml", edited, 0o644))

	// While the pod is attached, the removal is refused, with an agent and without one.
	for _, agent := range []string{"with", "without"} {
		d.refuses("dpkg -r berth", "1 pod attached (container c1)", "drain the node first; nothing is changed")
		d.must("berthd --version && test -e /opt/cni/bin/berth-cni && test -e /etc/cni/net.d/10-berth.conflist")
		talk.GoesOn("after a removal that was refused " + agent + " an agent")
		if agent == "with" {
			a.stop()
		}
	}

	// A user who insists gets rid of the package. Everything that the pod needs stays then,
	// also when the package is purged.
	said := d.must("BERTH_REMOVE_ANYWAY=1 dpkg -r berth", "1 pod attached (container c1)", "These pods keep their network")
	if strings.Contains(said, `"holds"`) || strings.Contains(said, "berth attachments") {
		t.Errorf("dpkg -r prints the ledger, or advises a program that is gone:\n%s", said)
	}
	talk.GoesOn("without the package")
	d.must("dpkg -P berth", "pods are still attached, so /var/lib/berth and /etc/berth/berthd.yaml stay")
	d.must("test -e /opt/cni/bin/berth-cni && test -e /var/lib/berth/ledger.db")
	if !bytes.Equal(edited, d.read("/etc/berth/berthd.yaml")) {
		t.Error("dpkg -P took the configuration of pods that are attached")
	}
	talk.GoesOn("without the package's configuration")

	// Back again, as postrm says, and away again. This time the pod ends meanwhile. The package that
	// comes back is another version, and replaces the plugin that had stayed in place.
	d.must("dpkg -i "+former, "/opt/cni/bin/berth-cni", "no agent runs")
	d.same("/usr/bin/berth-cni", "/opt/cni/bin/berth-cni")
	if !bytes.Equal(edited, d.read("/etc/berth/berthd.yaml")) {
		t.Error("the package replaced the configuration that it had left")
	}
	a = d.start()
	talk.GoesOn("with the package again")
	other := nettest.Pod(t)
	d.plugin("ADD", "c2", other)
	a.stop()
	d.must("BERTH_REMOVE_ANYWAY=1 dpkg -r berth", "2 pods attached (container c1, container c2)")
	d.plugin("DEL", "c2", other)
	d.plugin("DEL", "c1", pod)
	d.must("dpkg -P berth", "deletions wait in /var/lib/berth/deletions, so /var/lib/berth and /etc/berth/berthd.yaml stay")
	d.must("dpkg -i " + next)

	// Pods with queued deletions stop no removal: the removal does these deletions. Only a
	// configuration that somebody has edited is left then.
	d.must("dpkg -r berth", "10-berth.conflist", "kept, because somebody has edited it", "every new pod fails, until you rm /etc/cni/net.d/10-berth.conflist /opt/cni/bin/berth-cni", "`dpkg -P berth`")
	d.must("dpkg -i " + next)
	a = d.start()
	d.must("berth install", "10-berth.conflist", "somebody has edited it", "mac")
	d.must("berth install --overwrite", "10-berth.conflist.bak")
	d.must("rm /etc/cni/net.d/10-berth.conflist.bak")
	a.stop()
	d.must("dpkg -r berth", "/opt/cni/bin/berth-cni", "removed")
	if d.has("/opt/cni/bin/berth-cni") || d.has("/etc/cni/net.d/10-berth.conflist") || !d.has("/etc/berth/berthd.yaml") {
		t.Error("dpkg -r should remove the plugin and the conflist, and leave berthd.yaml")
	}
	d.must("dpkg -P berth")
	nettest.Delete(t, pod)
	nettest.Delete(t, other)
	nettest.Same(t, files, d.files(), "dpkg -P left files")
	nettest.Same(t, node, nettest.Snapshot(t, nil).Without("sysctl"), "dpkg -P left the node changed")
}

// A purge empties a state folder that is a mount of its own, leaves the mount with its lost+found to
// whoever has mounted it, and removes the rest.
func TestPurgeOfMount(t *testing.T) {
	d := newDebian(t)
	deb := d.bring("0.0.1", "berth_*.deb")
	files := d.files()
	state := d.dir + "/var/lib/berth"
	must(t, os.Mkdir(state, 0o700))
	must(t, unix.Mount("berth", state, "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(state, unix.MNT_DETACH) }) // after an error; otherwise it is unmounted by then
	d.must("mkdir /var/lib/berth/lost+found && dpkg -i " + deb)
	d.start().stop()
	d.must("test -e /var/lib/berth/ledger.db && dpkg -P berth")
	if left := d.must("ls -A /var/lib/berth"); left != "lost+found\n" {
		t.Errorf("dpkg -P left in the state folder: %s", left)
	}
	must(t, unix.Unmount(state, 0))
	must(t, os.Remove(state))
	nettest.Same(t, files, d.files(), "dpkg -P left files")
}

// reconfigured makes a package of another package, with another configuration, and returns the new
// package's path.
func (d debian) reconfigured(deb string) string {
	d.t.Helper()
	path := "/tmp/reconfigured.deb"
	d.must("dpkg-deb -R " + deb + " /tmp/deb && find /tmp/deb -name berthd.yaml -exec sed -i '1i# Another one' {} + && " +
		"dpkg-deb -Znone -b /tmp/deb " + path + " && rm -r /tmp/deb")
	return path
}
