package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/crash/killer"
	"github.com/berth-net/berth/test/programs"
)

// pod is a network namespace, with the container in it as the runtime knows it.
type pod struct {
	w         *world
	number    int
	netns     *ns.Netns
	empty     nettest.State // the namespace's state before it was ever attached
	container string        // the container's id; each attempt has a new one
	tries     int
	result    json.RawMessage // of ADD, as the runtime keeps it; nil: none
	addrs     []netip.Addr    // of the result
}

// pod returns the world's nth pod, from 0. The method makes pods that do not exist yet.
func (w *world) pod(n int) (*pod, error) {
	for len(w.pods) <= n {
		p := &pod{w: w, number: len(w.pods)}
		if err := p.make(); err != nil {
			return nil, err
		}
		w.pods = append(w.pods, p)
	}
	return w.pods[n], nil
}

func (p *pod) make() (err error) {
	if p.netns, err = makeNetns(fmt.Sprintf("%s-pod%d", filepath.Base(string(p.w.root)), p.number)); err != nil {
		return err
	}
	if err := p.netns.Do(nettest.LoopbackUp); err != nil { // as an ADD does, which leaves lo up
		return err
	}
	p.empty, err = nettest.Look(p.netns)
	return err
}

func (p *pod) delete() error { return p.netns.Delete() }

// renew begins a new container in the pod.
func (p *pod) renew() {
	p.tries++
	p.container, p.result, p.addrs = fmt.Sprintf("c%d-%d", p.number, p.tries), nil, nil
}

// command returns the command by which a runtime executes the plugin. keys are added to the
// configuration.
func (p *pod) command(verb string, keys ...string) (killer.Command, *files, error) {
	if p.result != nil && (verb == "DEL" || verb == "CHECK") {
		keys = append(keys, `"prevResult":`+string(p.result))
	}
	keys = append(keys, p.wishes()...)
	return p.w.plugin(verb, []string{"CNI_CONTAINERID=" + p.container, "CNI_NETNS=" + p.netns.Ref().Path, "CNI_IFNAME=eth0"}, keys...)
}

// wishes are what a pod's configuration asks for beyond other pods' configurations: the first pod
// has host ports, and limits of bandwidth.
func (p *pod) wishes() []string {
	if p.w.others != nil {
		return p.w.delegates()
	}
	if p.number > 0 {
		return nil
	}
	return []string{`"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":5353,"containerPort":53,"protocol":"udp"}],` +
		`"bandwidth":{"ingressRate":8000000,"ingressBurst":800000,"egressRate":8000000,"egressBurst":800000}}`}
}

// plugin returns the command that runs berth-cni for a verb.
func (w *world) plugin(verb string, env []string, keys ...string) (killer.Command, *files, error) {
	f, err := newFiles(programs.Conf(string(w.root), keys...))
	if err != nil {
		return killer.Command{}, nil, err
	}
	return killer.Command{
		Netns:  w.node.Ref().Path,
		Path:   filepath.Join(w.bin, "berth-cni"),
		Env:    append(env, "CNI_COMMAND="+verb, "CNI_PATH="+w.bin),
		Stdin:  f.in,
		Stdout: f.out, Stderr: f.complaint,
	}, f, nil
}

// files are a plugin's stdin, stdout and stderr, in memory.
type files struct{ in, out, complaint *os.File }

func newFiles(stdin string) (*files, error) {
	var f files
	for name, at := range map[string]**os.File{"stdin": &f.in, "stdout": &f.out, "stderr": &f.complaint} {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			f.close()
			return nil, os.NewSyscallError("memfd_create", err)
		}
		*at = os.NewFile(uintptr(fd), name)
	}
	_, err := f.in.WriteString(stdin)
	if err == nil {
		_, err = f.in.Seek(0, io.SeekStart)
	}
	return &f, err
}

func (f *files) close() {
	for _, f := range []*os.File{f.in, f.out, f.complaint} {
		f.Close() // closing a nil file is an error that does not matter
	}
}

// text returns all that was written to a file.
func text(f *os.File) string {
	_, _ = f.Seek(0, io.SeekStart)
	raw, _ := io.ReadAll(f)
	return string(raw)
}

// errKilled says that a plugin was killed.
var errKilled = errors.New("the plugin was killed")

// run runs a plugin under a judge (nil: without one) and returns what the plugin printed. A
// numbered error is an *api.Error.
func run(c killer.Command, f *files, judge killer.Judge) ([]byte, error) {
	defer f.close()
	start := killer.StartFree
	if judge != nil {
		start = func(c killer.Command) (*killer.Process, error) { return killer.Start(c, judge) }
	}
	p, err := start(c)
	if err != nil {
		return nil, err
	}
	return finish(p, f)
}

func finish(p *killer.Process, f *files) ([]byte, error) {
	status, err := p.Wait(2 * patience)
	switch {
	case err != nil:
		return nil, err
	case status.Signaled():
		return nil, errKilled
	case status.ExitStatus() == 0:
		return []byte(text(f.out)), nil
	}
	return nil, programs.Refusal([]byte(text(f.out)), fmt.Sprintf("status %#x", status), text(f.complaint))
}

// verb executes a verb for the pod.
func (p *pod) verb(verb string, judge killer.Judge) error {
	if verb == "DEL" {
		p.leaves()
	}
	c, f, err := p.command(verb)
	if err != nil {
		return err
	}
	out, err := run(c, f, judge)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", verb, p.container, err)
	}
	if verb == "ADD" {
		return p.attached(out)
	}
	return nil
}

// attached keeps ADD's result. attached fails if another container has one of the addresses, or
// had the address within the cooldown.
func (p *pod) attached(out []byte) error {
	got, err := programs.ReadResult(out)
	if err != nil {
		return err
	}
	if p.result = out; p.w.others != nil {
		return nil // the result is about host-local's address, which does not rest
	}
	p.addrs = got.Addrs
	return p.w.take(p.container, p.addrs)
}

// take notes that a container has addresses. take fails if an address is another container's, or
// has not rested for the cooldown.
func (w *world) take(container string, addrs []netip.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range addrs {
		if by, held := w.holds[a]; held && by != container {
			return fmt.Errorf("%s is given to %s, and %s has it", a, container, by)
		} else if last, used := w.seen[a]; !held && used && time.Since(last) < w.cooldown {
			return fmt.Errorf("%s is given to %s %v after another had it", a, container, time.Since(last))
		}
		w.holds[a] = container
		w.seen[a] = time.Now()
	}
	return nil
}

// leaves notes that the pod may lose its addresses from now on.
func (p *pod) leaves() {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, by := range w.holds {
		if by == p.container {
			w.seen[a] = time.Now()
			delete(w.holds, a)
		}
	}
}

// detach repeats DEL until it succeeds, as a runtime does.
func (p *pod) detach() error {
	var err error
	for range 20 {
		if err = p.verb("DEL", nil); err == nil {
			return nil
		}
		var e *api.Error
		if !errors.As(err, &e) || e.Code != 11 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// attach makes an attachment by the agent's API, which is faster than by the plugin. attach is
// for pods that only have to be attached.
func (p *pod) attach() error {
	p.renew()
	out, err := p.w.api.Add(context.Background(), api.AddRequest{
		ContainerID: p.container, Ifname: "eth0", Netns: api.Netns(p.netns.Ref()),
		Config: json.RawMessage(programs.Conf(string(p.w.root), p.wishes()...)),
	})
	if err != nil {
		return fmt.Errorf("adding %s: %w", p.container, err)
	}
	return p.attached(out)
}
