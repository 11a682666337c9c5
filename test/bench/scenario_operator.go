package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/share"
	"github.com/berth-net/berth/internal/share/apitest"
)

// The nodes of the cluster that the operator serves, and what each has of its pool.
const (
	operatorPool   = "default"
	blocksANode    = 10
	blockAddresses = 62 // that pods can have, of a /26
)

// operate measures berth-operator in a cluster of 10,000 nodes that have 100,000 blocks, whose API server is simulated in this process: what it
// takes to share these blocks out, the operator's memory, and how long a node waits for one more block.
func operate(ctx context.Context, b *bench) error {
	nodes := b.pick(10_000, 1000)
	t := b.report.section(fmt.Sprintf("berth-operator in a cluster of %d nodes that have %d blocks", nodes, nodes*blocksANode), "what", "figure")
	t.note("The API server is simulated, in the benchmark's process, and shares the processors with the operator")

	b.say("operator: sharing %d blocks out", nodes*blocksANode)
	memory := apitest.New()
	took, writes, err := shareOut(ctx, memory, nodes)
	if err != nil {
		return err
	}
	given := float64(nodes * blocksANode)
	t.row("all blocks shared out, in memory: without requests", fmt.Sprintf("%.1f s", took.Seconds()))
	t.row("API writes for each of these blocks", fmt.Sprintf("%.2f", float64(writes)/given))

	server := newClusterAPI()
	defer server.close()
	has := make(chan kubetest.Object, 16)
	server.Wrote = func(resource string, o kubetest.Object) {
		if resource == "nodenetworks" {
			has <- o
		}
	}
	putAll[*corev1.Node](server, "nodes", memory)
	putAll[*v1alpha1.NodeNetwork](server, "nodenetworks", memory)
	putAll[*v1alpha1.IPPool](server, "ippools", memory)
	memory = nil
	b.say("operator: starting")
	o, err := startOperator(b, server)
	if err != nil {
		return err
	}
	defer o.end()
	n := b.pick(100, 20)
	begun := time.Now()
	var waits []time.Duration
	for i := range n + 1 {
		wait, err := oneMore(ctx, server, has, operatorNode(i*(nodes/(n+1))))
		if err != nil {
			return errors.Join(err, o.failed())
		}
		if i == 0 { // the operator reads everything first
			t.row("start, until a first block is given", fmt.Sprintf("%.1f s", time.Since(begun).Seconds()))
			server.Asked()
			continue
		}
		waits = append(waits, wait)
	}
	changes := 0
	for _, call := range server.Asked() {
		if !strings.HasPrefix(call, "GET ") {
			changes++
		}
	}
	resident, most, err := o.memory()
	if err != nil {
		return err
	}
	t.row("one block for one node, from its request until it has the block, p50", num(percentile(waits, 50))+" ms")
	t.row("the same, p99", num(percentile(waits, 99))+" ms")
	t.row("API writes for each of these blocks", fmt.Sprintf("%.2f", float64(changes)/float64(n)))
	t.row("operator's resident memory", mb(resident)+" MB")
	t.row("the most that it was", mb(most)+" MB")
	b.report.atMost(fmt.Sprintf("operator: API writes for each of %d blocks", nodes*blocksANode), float64(writes)/given, 0.2, "writes")
	b.report.atMost("operator: API writes for one block", float64(changes)/float64(n), 3, "writes")
	return nil
}

func operatorNode(i int) string { return fmt.Sprintf("node-%05d", i) }

// shareOut makes a pool and nodes that each need blocksANode blocks, and shares these out, all in memory.
func shareOut(ctx context.Context, memory *apitest.Server, nodes int) (took time.Duration, writes int, err error) {
	c := &apitest.Client{Server: memory, Cache: memory.Cache(0)}
	s := share.New(c, slog.New(slog.DiscardHandler))
	p := &v1alpha1.IPPool{Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.0.0.0/8"}}}}
	p.Name = operatorPool
	if err := memory.Create(p); err != nil {
		return 0, 0, err
	}
	for i := range nodes {
		name := operatorNode(i)
		if err := errors.Join(memory.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}), s.Node(ctx, name)); err != nil {
			return 0, 0, err
		}
		n := apitest.Get[*v1alpha1.NodeNetwork](memory, name).DeepCopy()
		n.Status.Requests = []v1alpha1.Request{{Pool: operatorPool, Addresses: blocksANode * blockAddresses}}
		n.Status.Addresses = []string{fmt.Sprintf("172.16.%d.%d", i>>8, i&255)}
		if err := memory.Update(n, true); err != nil {
			return 0, 0, err
		}
	}
	c.Cache.Advance(memory.Version())
	before, begun := memory.Writes(), time.Now()
	for again := true; again; {
		if again, err = s.Pool(ctx, operatorPool); err != nil {
			return 0, 0, err
		}
		c.Cache.Advance(memory.Version())
	}
	took, writes = time.Since(begun), memory.Writes()-before
	if got := apitest.Get[*v1alpha1.IPPool](memory, operatorPool).Status.Blocks.Given; got != int64(nodes*blocksANode) {
		return 0, 0, fmt.Errorf("%d nodes have %d blocks", nodes, got)
	}
	return took, writes, nil
}

// putAll gives a cluster all objects of a kind.
func putAll[T metav1.Object](server *clusterAPI, resource string, from *apitest.Server) {
	for _, o := range apitest.List[T](from) {
		server.Put(resource, o)
	}
}

// oneMore has a node's agent ask for one more block, and returns how long it takes until the node has it. has has NodeNetworks that were written.
func oneMore(ctx context.Context, server *clusterAPI, has <-chan kubetest.Object, node string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	begun := time.Now()
	server.Edit("nodenetworks", "/"+node, func(o kubetest.Object) {
		o["status"].(kubetest.Object)["requests"] = []any{kubetest.Object{"pool": operatorPool, "addresses": (blocksANode + 1) * blockAddresses}}
	})
	for {
		select {
		case o := <-has:
			blocks, _ := o["spec"].(kubetest.Object)["blocks"].([]any)
			if o["metadata"].(kubetest.Object)["name"] == node && len(blocks) == blocksANode+1 {
				return time.Since(begun), nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("%s gets no block: %w", node, ctx.Err())
		}
	}
}

// operatorProcess is a berth-operator that runs.
type operatorProcess struct {
	cmd *exec.Cmd
	log string
}

func startOperator(b *bench, server *clusterAPI) (*operatorProcess, error) {
	url, err := server.listen(nil)
	if err != nil {
		return nil, err
	}
	root := filepath.Join(b.dir, "operator")
	kubeconfig, err := writeKubeconfig(root, url)
	if err != nil {
		return nil, err
	}
	o := &operatorProcess{log: filepath.Join(root, "log")}
	log, err := os.Create(o.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	o.cmd = exec.Command(filepath.Join(b.opts.bin, "berth-operator"),
		"--kubeconfig", kubeconfig, "--leader-elect=false", "--metrics=0", "--health=0")
	o.cmd.Stdout, o.cmd.Stderr = log, log
	return o, o.cmd.Start()
}

// memory returns the resident memory of the operator, and the most that it was, in bytes.
func (o *operatorProcess) memory() (now, most int64, err error) {
	file := fmt.Sprintf("/proc/%d/status", o.cmd.Process.Pid)
	for key, to := range map[string]*int64{"VmRSS": &now, "VmHWM": &most} {
		kb, err := strconv.ParseInt(strings.TrimSuffix(field(file, key), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("reading the operator's memory: %w", err)
		}
		*to = kb << 10
	}
	return now, most, nil
}

// failed returns the end of the operator's log as an error.
func (o *operatorProcess) failed() error {
	raw, err := os.ReadFile(o.log)
	return errors.Join(err, errors.New(string(raw[max(0, len(raw)-2000):])))
}

func (o *operatorProcess) end() {
	_ = o.cmd.Process.Signal(unix.SIGTERM) // it may have ended
	_ = o.cmd.Wait()
}
