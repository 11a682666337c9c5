package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// fuzzed opens an agent for a fuzz target. Several processes fuzz one target in
// one network namespace, so each has pools of its own.
func fuzzed(f *testing.F) *rig {
	pid := os.Getpid()
	pool := fmt.Sprintf("default=10.%d.%d.0/24,fd00:%x::/64", pid>>8&0xff, pid&0xff, pid&0xffff)
	r := newRig(f, pool)
	r.bringUp()
	f.Cleanup(func() {
		if err := r.remove(context.Background()); err != nil {
			f.Errorf("removing: %v", err)
		}
		r.close()
	})
	return r
}

// FuzzAdd: whatever an ADD says, the agent refuses the ADD with a number, and the ADD leaves no trace.
// Or the ADD has a result that CHECK agrees with, and a DEL deletes the attachment again.
func FuzzAdd(f *testing.F) {
	r := fuzzed(f)
	pod := nettest.Pod(f)
	for i, s := range []struct{ container, ifname, args, path, config string }{
		{"c", "eth0", "", "/run/netns/a", `{"cniVersion":"1.1.0","name":"net","type":"berth-cni"}`},
		{"c", "eth0", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;IgnoreUnknown=1;X=y", "", `{"cniVersion":"0.1.0","name":"net","type":"berth-cni","mtu":1280}`},
		{"c", "lo", "", "/proc/self/ns/net", `{"cniVersion":"1.0.0","name":"net","type":"berth-cni","wait":true,"dns":{"nameservers":["::1"]}}`},
		{"../c", "a/b", "=;", "relative", `{"name":"net"`},
		{"c", "eth0", "", "/", `{"cniVersion":"1.1.0","name":"net","type":"berth-cni","runtimeConfig":{"ips":["10.0.0.1","fd00::1"],"mac":"02:00:00:00:00:01"}}`},
		{"c", "eth0", "", "/", `{"cniVersion":"1.1.0","name":"net","type":"berth-cni","prevResult":{},"pool":"none","mtu":65535}`},
		{"\xff", "\x00", "\x00", "\x00", "\xff"},
		{"c", "%d", "", "/dev/null", `{"cniVersion":"1.1.0","name":"net","type":"berth-cni","mtu":65535}`},
	} {
		for where := range byte(4) {
			f.Add(s.container, s.ifname, s.args, s.path, uint64(i), uint64(i), where, []byte(s.config))
		}
	}
	f.Fuzz(func(t *testing.T, container, ifname, args, path string, dev, ino uint64, where byte, config []byte) {
		req := api.AddRequest{ContainerID: container, Ifname: ifname, Args: args, Config: json.RawMessage(config)}
		switch where % 4 {
		case 0: // a place that may be anything
			req.Netns = api.Netns{Path: path, Dev: dev, Ino: ino}
		case 1: // a pod
			req.Netns = api.Netns(pod.Ref())
		case 2: // a pod's place, where another is now
			req.Netns = api.Netns{Path: pod.Ref().Path, Dev: dev, Ino: ino}
		case 3: // the node
			req.Netns = api.Netns(r.node.Netns)
			req.Netns.Path = "/proc/self/ns/net"
		}
		raw, err := r.Add(t.Context(), req, now())
		if err != nil {
			numbered(t, err)
			if left := r.List(api.Filter{}); len(left) > 0 && !allReleasing(left) {
				t.Errorf("a refused ADD left %+v", left)
			}
			return
		}
		var conf map[string]json.RawMessage
		if err := json.Unmarshal(config, &conf); err != nil || !json.Valid(raw) || where%4 != 1 {
			t.Fatalf("ADD succeeded with %s: %v", raw, err)
		}
		conf["prevResult"] = raw
		req.Config, err = json.Marshal(conf)
		must(t, err)
		if err := r.Check(t.Context(), req, now()); err != nil {
			t.Errorf("CHECK after ADD: %v", err)
		}
		_, known, err := r.Delete(t.Context(), api.Filter{Container: container}, true, now())
		if left := r.List(api.Filter{}); err != nil || !known || len(left) > 0 {
			t.Errorf("DEL after ADD: known %t, %v; left: %+v", known, err, left)
		}
	})
}

// numbered checks that an error has a code of CNI's or of Berth's, and is not an error without
// a code.
func numbered(t *testing.T, err error) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code == 0 || e.Code == cni.CodeInternal || e.Msg == "" {
		t.Errorf("error without a number: %v", err)
	}
}

func allReleasing(list []api.Attachment) bool {
	return !slices.ContainsFunc(list, func(at api.Attachment) bool { return at.Releasing == nil })
}

// FuzzFilter: whatever a filter says, the attachments that it lists match it, a deletion by the
// filter takes exactly these, and all others stay.
func FuzzFilter(f *testing.F) {
	r := fuzzed(f)
	pods := []*ns.Netns{nettest.Pod(f), nettest.Pod(f)}
	for _, s := range []api.Filter{
		{}, {Network: "net"}, {Network: "net", Container: "c0", Ifname: "eth0"}, {Container: "c1"}, {Container: "none"},
		{Namespace: "a"}, {Namespace: "a", Pod: "p1"}, {UID: "u0"}, {Address: "10.0.0.1"}, {Address: "::"}, {Link: "b"},
		{State: "attached"}, {State: "owed"}, {State: "?"}, {Network: "a/b", Container: "/", Ifname: "\xff"},
	} {
		f.Add(s.Network, s.Container, s.Ifname, s.Namespace, s.Pod, s.UID, s.Address, s.State, s.Link)
	}
	f.Cleanup(r.releaseAll)
	f.Fuzz(func(t *testing.T, network, container, ifname, namespace, pod, uid, address, state, link string) {
		var all []api.Attachment
		for i, p := range pods {
			req := request(fmt.Sprint("c", i), p)
			req.Args = fmt.Sprintf("K8S_POD_NAMESPACE=a;K8S_POD_NAME=p%d;K8S_POD_UID=u%d", i, i)
			if _, err := r.Add(t.Context(), req, now()); err != nil {
				t.Fatal(err)
			}
			all = append(all, r.List(key(req.ContainerID))...)
		}
		filter := api.Filter{
			Network: network, Container: container, Ifname: ifname, Namespace: namespace, Pod: pod, UID: uid,
			Address: address, State: state, Link: link,
		}
		listed := r.List(filter)
		filter.State = "" // the filter of a deletion has no state
		want := 0
		for _, at := range all {
			if plainlyMatches(at, filter) {
				want++
			}
		}
		if have := r.List(filter); len(have) != want || len(listed) > want {
			t.Errorf("%+v lists %+v, want %d of %+v", filter, have, want, all)
		}
		d, known, err := r.Delete(t.Context(), filter, true, now())
		if err != nil {
			numbered(t, err)
			return
		}
		if d.Released != want || known != (want > 0) || len(r.List(api.Filter{})) != len(all)-want {
			t.Errorf("DEL by %+v: %+v, known %t; left: %+v", filter, d, known, r.List(api.Filter{}))
		}
	})
}

// plainlyMatches compares an attachment with a filter in the plain way.
func plainlyMatches(at api.Attachment, f api.Filter) bool {
	address := f.Address == ""
	for _, a := range at.Addresses {
		address = address || a == f.Address
	}
	ok := func(want, have string) bool { return want == "" || want == have }
	return address && ok(f.Network, at.Network) && ok(f.Container, at.ContainerID) && ok(f.Ifname, at.Ifname) &&
		ok(f.Namespace, at.Pod.Namespace) && ok(f.Pod, at.Pod.Name) && ok(f.UID, at.Pod.UID) && ok(f.Link, at.HostVeth)
}
