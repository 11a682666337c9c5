package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cri"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

var must = nettest.Must

// All installs that run at once are in the record, also if an uninstall removes the state
// folder meanwhile.
func TestInstallsAtOnce(t *testing.T) {
	dir := t.TempDir()
	a := &app{root: filepath.Join(dir, "root")}
	note := func(name string) {
		err := a.alone(t.Context(), func() error {
			rec, err := a.record()
			if err != nil {
				return err
			}
			return rec.note(installedFile{Path: filepath.Join(dir, name), Sort: sortConf})
		})
		if err != nil {
			t.Error(err)
		}
	}
	forget := func() {
		if err := a.aloneIfInstalled(t.Context(), func() error { return (&record{app: a}).save() }); err != nil {
			t.Error(err)
		}
	}
	const rounds, atOnce = 5, 4
	for range rounds {
		var all sync.WaitGroup
		for i := range atOnce {
			all.Go(func() { note(fmt.Sprint(i)) })
		}
		all.Wait()
		rec, err := a.record()
		nettest.Must(t, err)
		if len(rec.Files) != atOnce {
			t.Fatalf("the record has %d of %d files", len(rec.Files), atOnce)
		}
		all.Go(forget)
		all.Go(func() { note("last") })
		all.Wait()
		forget()
		if _, err := os.Lstat(a.dir().State()); err == nil {
			t.Fatal("the state folder stays, with nothing in it")
		}
	}
}

// An install that waits for another install ends with its context.
func TestInstallWaits(t *testing.T) {
	a := &app{root: t.TempDir()}
	err := a.alone(t.Context(), func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		return a.alone(ctx, func() error { return nil })
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second install beside the first: %v", err)
	}
}

// waited is a context that tells when somebody first waits for its end.
type waited struct {
	context.Context
	tell func()
}

func (w waited) Done() <-chan struct{} {
	w.tell()
	return w.Context.Done()
}

// An install that waits for an uninstall gets the lock afterwards, also if the uninstall
// removes the state folder.
func TestInstallWaitsForUninstall(t *testing.T) {
	a := &app{root: t.TempDir()}
	waits, ended := make(chan struct{}), make(chan error, 1)
	nettest.Must(t, a.alone(t.Context(), func() error {
		go func() {
			ctx := waited{t.Context(), sync.OnceFunc(func() { close(waits) })}
			ended <- a.alone(ctx, func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := a.alone(ctx, func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("another one beside it: %w", err)
				}
				return nil
			})
		}()
		<-waits
		return os.Remove(a.dir().State())
	}))
	nettest.Must(t, <-ended)
}

// A pod whose DEL is queued needs the plugin no more, unless its runtime was told to repeat the DEL.
func TestNeedingThePlugin(t *testing.T) {
	k := attachment.Key{Network: "net", ContainerID: "c", Ifname: "eth0"}
	owners := []hold.Owner{{ID: "aaaaaaaaaa", Meta: attachment.Record{Key: k, Epoch: bootID()}.Encode()}}
	queued := func(again bool) deletions.Entry {
		return deletions.Entry{Record: deletions.Record{Network: "net", Container: "c", Ifname: "eth0", Boot: bootID(), Started: 1 << 62, Again: again}}
	}
	for name, test := range map[string]struct {
		queue []deletions.Entry
		want  int
	}{
		"no DEL":              {nil, 1},
		"to be repeated":      {[]deletions.Entry{queued(true)}, 1},
		"ended":               {[]deletions.Entry{queued(false)}, 0},
		"ended by the second": {[]deletions.Entry{queued(true), queued(false)}, 0},
	} {
		if pods := needing(owners, test.queue); len(pods) != test.want {
			t.Errorf("%s: %v", name, pods)
		}
	}
}

// A pod that has certainly ended needs the plugin no more: its runtime may have told another CNI's plugin.
func TestEndedPodNeedsNoPlugin(t *testing.T) {
	nettest.Need(t)
	lives, gone, other := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	was := gone.Ref()
	nettest.Delete(t, gone)
	another := lives.Ref()
	another.Path = other.Ref().Path
	file, hidden := lives.Ref(), lives.Ref()
	file.Path, hidden.Path = filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "no folder", "ns")
	nettest.Must(t, os.WriteFile(file.Path, nil, 0o600))
	this := bootID() + "/1/2/3"
	for name, test := range map[string]struct {
		epoch string
		netns ns.Ref
		want  int
	}{
		"it lives":                      {this, lives.Ref(), 1},
		"nothing is at the path":        {this, was, 0},
		"another pod is at the path":    {this, another, 0},
		"a file is at the path":         {this, file, 1},
		"nobody sees the path's folder": {this, hidden, 1},
		"nobody knows the namespace":    {this, ns.Ref{}, 1},
		"it is of an earlier boot":      {"earlier/1/2/3", lives.Ref(), 0},
		"its record has no epoch":       {"", lives.Ref(), 1},
	} {
		r := attachment.Record{Key: attachment.Key{Network: "net", ContainerID: "c", Ifname: "eth0"}, Epoch: test.epoch, Netns: test.netns}
		if pods := needing([]hold.Owner{{ID: "aaaaaaaaaa", Meta: r.Encode()}}, nil); len(pods) != test.want {
			t.Errorf("%s: %v need the plugin", name, pods)
		}
	}
}

// The next install removes the half-written files of a killed install. It does not touch the
// half-written files of another root.
func TestKilledInstallLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	a, other := &app{root: filepath.Join(dir, "a")}, &app{root: filepath.Join(dir, "b")}
	rec := &record{app: a}
	nettest.Must(t, rec.note(installedFile{Path: filepath.Join(dir, plugin), Sort: sortPlugin}))
	half := func(a *app, dir, of string) string {
		f, err := os.CreateTemp(dir, "."+of+".*"+a.tmp())
		nettest.Must(t, err)
		nettest.Must(t, f.Close())
		return f.Name()
	}
	gone := []string{half(a, dir, plugin), half(a, a.dir().State(), "installed.json")}
	stays := half(other, dir, plugin)
	nettest.Must(t, a.alone(t.Context(), func() error { return nil }))
	for _, path := range gone {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if _, err := os.Lstat(stays); err != nil {
		t.Errorf("another root's: %v", err)
	}
}

// A program that a killed uninstall had set aside comes back with the next install or uninstall, unless
// another program is in its place.
func TestKilledUninstallPutsBack(t *testing.T) {
	for _, test := range []struct{ name, now, want string }{{"nothing is there", "", "old"}, {"another is there", "new", "new"}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			a := &app{root: filepath.Join(dir, "root")}
			rec := &record{app: a}
			nettest.Must(t, rec.note(installedFile{Path: filepath.Join(dir, plugin), Sort: sortPlugin}))
			u := undoing{record: rec}
			for _, program := range []string{plugin, loopback} {
				path := filepath.Join(dir, program)
				nettest.Must(t, os.WriteFile(path, []byte("old"), 0o755))
				_, err := u.setAside(path)
				nettest.Must(t, err)
				if test.now != "" {
					nettest.Must(t, os.WriteFile(path, []byte(test.now), 0o755))
				}
			}
			nettest.Must(t, a.aloneIfInstalled(t.Context(), func() error { return nil }))
			for _, program := range []string{plugin, loopback} {
				if have, err := os.ReadFile(filepath.Join(dir, program)); err != nil || string(have) != test.want {
					t.Errorf("%s: %q, %v; want %q", program, have, err, test.want)
				}
			}
			if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// A terminal that goes away ends a command as SIGTERM does, so that uninstall puts back what it has
// set aside.
func TestHangupEnds(t *testing.T) {
	heard := make(chan os.Signal, 1) // otherwise a test that nohup runs would ignore SIGHUP
	signal.Notify(heard, syscall.SIGHUP)
	defer signal.Stop(heard)
	ctx, stop := untilSignal()
	defer stop()
	nettest.Must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	select {
	case <-ctx.Done():
	case <-time.After(nettest.Deadline):
		t.Error("the command goes on")
	}
}

// An ADD that has begun when uninstall removes the plugin may attach a pod: uninstall waits for the
// ADD's process, and puts the plugin back if a pod came.
func TestUninstallBesideAdd(t *testing.T) {
	for _, test := range []struct{ name, came, action string }{{"a pod came", "1 pod attached meanwhile", "kept"}, {"none came", "", "removed"}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, plugin)
			program, err := os.ReadFile("/bin/sleep")
			nettest.Must(t, err)
			nettest.Must(t, os.WriteFile(path, program, 0o755))
			add := exec.Command(path, "1000")
			nettest.Must(t, add.Start())
			asked := 0
			u := undoing{record: &record{app: &app{root: dir}}, remove: unplace}
			u.take = u.setAside
			ended := make(chan struct{})
			u.needed = func() string {
				if asked++; asked == 1 { // nobody needs the plugin yet; the ADD ends once no other ADD can begin
					go func() {
						nettest.Eventually(t, "the plugin to be away", func() bool {
							_, err := os.Lstat(path)
							return err != nil
						})
						_ = add.Process.Kill()
						_ = add.Wait()
						close(ended)
					}()
					return ""
				}
				if _, err := os.Stat(fmt.Sprintf("/proc/%d/exe", add.Process.Pid)); err == nil {
					t.Error("uninstall does not wait for the ADD")
				}
				<-ended
				return test.came
			}
			nettest.Must(t, u.files(t.Context(), []installedFile{{Path: path, Sort: sortPlugin}}))
			if asked != 2 || len(u.done) != 1 || u.done[0].Action != test.action || u.done[0].Why != test.came || u.kept != test.came {
				t.Errorf("asked %d times; %+v, %q", asked, u.done, u.kept)
			}
			left, err := os.ReadFile(path)
			if there := err == nil && bytes.Equal(left, program); there != (test.came != "") {
				t.Errorf("the plugin is there: %t, %v", there, err)
			}
			entries, _ := os.ReadDir(dir)
			if len(entries) > 1 {
				t.Errorf("left: %v", entries)
			}
		})
	}
}

// folders guesses if no runtime's configuration can name the folders. Without --runtime, flags that
// name both folders spare the guess.
func TestFoldersBlind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	nettest.Must(t, os.WriteFile(file, []byte("version = 2\n[plugins\n"), 0o600))
	for _, c := range []struct {
		places
		blind bool
	}{
		{places{runtimes: []string{"containerd=" + file}}, true},
		{places{runtimes: []string{"containerd=" + file}, binDir: "/b", confDir: "/c"}, true},
		{places{binDir: "/b", confDir: "/c"}, false},
	} {
		if _, _, blind := c.folders(); (blind != nil) != c.blind {
			t.Errorf("%+v: %v", c.places, blind)
		}
	}
}

// Files stay that a runtime of the node still needs: the copy for lo while there is another
// network, the folder into which the runtime looks, and the plugin while a runtime's configuration
// uses the plugin, or cannot be read.
func TestUninstallBesideOthers(t *testing.T) {
	const broken, well = "this is = = no toml", ""
	for _, test := range []struct {
		name, network, kata, crio     string
		plugin, loopback, folder, why string // what becomes of each file, and why the first of those that stay does so
	}{
		{"nothing else", "", "", well, "removed", "removed", "kept", "containerd looks for networks there"},
		{"another network", "other", "", well, "removed", "kept", "kept", "pods of other networks, such as that of DIR/net.d/20-other.conf, may need it for their lo"},
		{"a handler beside a broken runtime", "", plugin, broken, "kept", "kept", "kept", "DIR/kata.d/20-kata.conf uses it"},
		{"a broken runtime", "", "", broken, "kept", "kept", "kept", "a network may use it where berth cannot tell"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(path ...string) string { return filepath.Join(append([]string{dir}, path...)...) }
			write := func(text string, path ...string) {
				nettest.Must(t, os.MkdirAll(filepath.Dir(at(path...)), 0o755))
				nettest.Must(t, os.WriteFile(at(path...), []byte(text), 0o755))
			}
			write(fmt.Sprintf("version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '%s'\nconf_dir = '%s'\n"+
				"[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.kata]\ncni_conf_dir = '%s'\n",
				at("bin"), at("net.d"), at("kata.d")), "etc/containerd/config.toml")
			if test.crio != well {
				write(test.crio, "etc/crio/crio.conf")
			}
			a := &app{root: at("root")}
			rec, err := a.record()
			nettest.Must(t, err)
			program, err := os.ReadFile(filepath.Join(programs.Own(t), plugin))
			nettest.Must(t, err)
			for _, f := range []installedFile{{Path: at("net.d/10-berth.conflist"), Sort: sortConf}, {Path: at("bin", plugin), Sort: sortPlugin}, {Path: at("bin", loopback), Sort: sortLoopback}} {
				nettest.Must(t, rec.note(f))
			}
			nettest.Must(t, os.Mkdir(at("net.d"), 0o755))
			write(string(program), "bin", plugin)
			write(string(program), "bin", loopback)
			if test.network != "" {
				write(`{"name":"other","type":"other"}`, "net.d/20-other.conf")
			}
			if test.kata != "" {
				write(`{"name":"kata","type":"`+test.kata+`"}`, "kata.d/20-kata.conf")
			}
			u := undoing{record: rec, remove: unplace, take: unplace, needed: func() string { return "" }, node: cri.Node{Host: dir}}
			nettest.Must(t, u.files(t.Context(), slices.Clone(rec.Files)))
			why := ""
			for path, want := range map[string]string{at("bin", plugin): test.plugin, at("bin", loopback): test.loopback, at("net.d"): test.folder} {
				i := slices.IndexFunc(u.done, func(v fileView) bool { return v.File == path })
				if i < 0 || u.done[i].Action != want {
					t.Errorf("%s: %+v, want it %s", path, u.done, want)
				}
			}
			for _, v := range u.done {
				if v.Action == "kept" && why == "" {
					why = v.Why
				}
			}
			if want := strings.ReplaceAll(test.why, "DIR", dir); !strings.HasPrefix(why, want) {
				t.Errorf("kept because %q, want %q", why, want)
			}
			if nothing := test.name == "nothing else"; nothing != (len(u.Files)+len(u.Dirs) == 0) {
				t.Errorf("the record has %v, %v", u.Files, u.Dirs)
			}
		})
	}
}

// A configuration that stays keeps a plugin only if its runtime looks for plugins in the plugin's
// folder, or in a folder that leads there.
func TestUninstallOfOneRuntime(t *testing.T) {
	for _, test := range []struct {
		name   string
		looks  string // the folder in which containerd looks for plugins
		action string
	}{
		{"another folder", "lib", "removed"},
		{"the same folder", "bin", "kept"},
		{"a link to the folder", "link", "kept"},
		{"a folder with a link to the plugin", "linked", "kept"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(path ...string) string { return filepath.Join(append([]string{dir}, path...)...) }
			write := func(text string, path ...string) {
				nettest.Must(t, os.MkdirAll(filepath.Dir(at(path...)), 0o755))
				nettest.Must(t, os.WriteFile(at(path...), []byte(text), 0o755))
			}
			write(fmt.Sprintf("version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '%s'\nconf_dir = '%s'\n", at(test.looks), at("net.d")), "etc/containerd/config.toml")
			write(fmt.Sprintf("[crio.network]\nplugin_dirs = ['%s']\nnetwork_dir = '%s'\n", at("bin"), at("crio.d")), "etc/crio/crio.conf")
			write(`{"name":"berth","plugins":[{"type":"`+plugin+`"}]}`, "net.d/10-berth.conflist")
			write("a program", "bin", plugin)
			write("a program", "lib", plugin)
			nettest.Must(t, os.Symlink("bin", at("link")))
			nettest.Must(t, os.Mkdir(at("linked"), 0o755))
			nettest.Must(t, os.Symlink(at("bin", plugin), at("linked", plugin)))
			rec := &record{app: &app{root: at("root")}, Looks: []string{at("net.d"), at("crio.d")}}
			rec.Files = []installedFile{{Path: at("net.d/10-berth.conflist"), Sort: sortConf}, {Path: at("lib", plugin), Sort: sortPlugin}}
			u := undoing{record: rec, remove: unplace, take: unplace, needed: func() string { return "" }, node: cri.Node{Host: dir}}
			nettest.Must(t, u.files(t.Context(), []installedFile{{Path: at("crio.d/10-berth.conflist"), Sort: sortConf}, {Path: at("bin", plugin), Sort: sortPlugin}}))
			v := u.done[slices.IndexFunc(u.done, func(v fileView) bool { return v.File == at("bin", plugin) })]
			if v.Action != test.action || v.Action == "kept" && v.Why != at("net.d/10-berth.conflist")+" uses it" {
				t.Errorf("%+v, want it %s", v, test.action)
			}
		})
	}
}

// An uninstall that cannot write its record still prints what it did.
func TestUninstallOnFullDisk(t *testing.T) {
	nettest.Need(t)
	dir := t.TempDir()
	a := newApp()
	a.root = filepath.Join(dir, "root")
	nettest.Must(t, os.MkdirAll(a.dir().State(), 0o700))
	nettest.Mount(t, a.dir().State(), "nr_inodes=2")
	kept, gone := filepath.Join(dir, plugin), filepath.Join(dir, "bin", plugin)
	raw := fmt.Sprintf(`{"files":[{"path":%q,"sort":"loopback"},{"path":%q,"sort":"plugin"}],"dirs":[]}`, kept, gone)
	nettest.Must(t, os.WriteFile(kept, nil, 0o755))
	nettest.Must(t, os.WriteFile(a.recordPath(), []byte(raw), 0o600))
	var said, complaint bytes.Buffer
	a.stdout, a.stderr = &said, &complaint
	code := a.run(t.Context(), []string{"--root", a.root, "uninstall"})
	if code != 1 || !strings.Contains(complaint.String(), "no space left") || !strings.Contains(said.String(), gone) || !strings.Contains(said.String(), "somebody else's") {
		t.Errorf("exit code %d\n%s%s", code, said.String(), complaint.String())
	}
}

// Two roots share the folders of a runtime. One root is uninstalled while the other is installed.
// If the uninstall removes the plugin before the other root's configuration is in place, the
// install puts the plugin back; if it removes the plugin later, the uninstall itself puts it back.
func TestUninstallBesideInstallOfAnotherRoot(t *testing.T) {
	dir := t.TempDir()
	path, conf := filepath.Join(dir, plugin), filepath.Join(dir, "10-berth.conflist")
	asked := 0
	u := undoing{record: &record{app: &app{root: dir}}, remove: unplace, node: cri.Node{Host: dir}, needed: func() string {
		if asked++; asked == 2 { // the plugin is set aside
			nettest.Must(t, os.WriteFile(filepath.Join(dir, "20-other.conflist"), []byte(`{"plugins":[{"type":"`+plugin+`"}]}`), 0o644))
		}
		return ""
	}}
	u.take = u.setAside
	nettest.Must(t, os.WriteFile(path, []byte("old"), 0o755))
	nettest.Must(t, u.files(t.Context(), []installedFile{{Path: conf, Sort: sortConf}, {Path: path, Sort: sortPlugin}}))
	if have, err := os.ReadFile(path); string(have) != "old" || asked != 2 || u.done[1].Action != "kept" || u.done[1].Why != filepath.Join(dir, "20-other.conflist")+" uses it by now" {
		t.Errorf("%q, %v; asked %d times; %+v", have, err, asked, u.done)
	}
	nettest.Must(t, os.Remove(path))
	nettest.Must(t, u.placeAgain([]fileView{{File: conf}, {File: path}}, []byte("new")))
	if have, err := os.ReadFile(path); string(have) != "new" {
		t.Errorf("after the install: %q, %v", have, err)
	}
}
