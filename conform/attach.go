package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"sync"
	"time"
)

// Attachment is what a runtime knows of one interface of one container.
type Attachment struct {
	ID      string // CNI_CONTAINERID
	Ifname  string
	Pod     *Pod   // nil: CNI_NETNS is not set
	Args    string // CNI_ARGS
	Runtime map[string]any
	Keys    map[string]any    // set in each plugin's configuration
	Version string            // cniVersion
	Result  json.RawMessage   // what the last plugin answered to ADD; nil: no ADD has answered, and calls have no prevResult
	steps   []json.RawMessage // what each plugin of the list answered to ADD
}

// NewAttachment makes a new pod, and returns an attachment for it that no ADD has made yet.
func (t *T) NewAttachment() *Attachment { return t.newAttachment(t.NewPod()) }

// Attached makes a new pod, executes ADD for it, and returns the attachment.
func (t *T) Attached() *Attachment {
	a := t.NewAttachment()
	t.MustAdd(a)
	return a
}

// Orphan does what Attached does, and then ends the pod's network namespace.
func (t *T) Orphan() *Attachment {
	a := t.Attached()
	t.must(a.Pod.Remove())
	return a
}

// newAttachment returns an attachment for a pod that no ADD has made yet.
func (t *T) newAttachment(pod *Pod) *Attachment {
	t.ids++
	return &Attachment{
		ID: fmt.Sprintf("conform-%d", t.ids), Ifname: t.suite.Ifname, Pod: pod, Version: t.Version,
		Runtime: runtimeArgs(t.ids),
	}
}

// anyID matches the ids of the suite's containers.
var anyID = regexp.MustCompile(`\bconform-\d+\b`)

// hostPort returns the port of the node that the runtime maps to a port of a container. container is
// the container's number, T.ids.
func hostPort(container int) int { return 20000 + container%40000 }

// runtimeArgs returns the arguments that a runtime has for a container, by their capabilities. A
// plugin gets only the arguments whose capability it declares (CNI's CONVENTIONS.md, "Dynamic Plugin
// specific fields"). No two containers share a port.
func runtimeArgs(container int) map[string]any {
	mapping := func(protocol string) map[string]any {
		return map[string]any{"hostPort": hostPort(container), "containerPort": 8000, "protocol": protocol}
	}
	return map[string]any{
		"portMappings": []any{mapping("tcp"), mapping("udp")},
		"bandwidth":    map[string]any{"ingressRate": 1e9, "ingressBurst": 1e8, "egressRate": 1e9, "egressBurst": 1e8},
	}
}

// env returns the CNI_ variables of a call (CNI 1.1, section 2).
func (a *Attachment) env() map[string]string {
	e := map[string]string{"CNI_CONTAINERID": a.ID, "CNI_IFNAME": a.Ifname, "CNI_ARGS": a.Args}
	if a.Pod != nil {
		e["CNI_NETNS"] = a.Pod.Path
	}
	return e
}

// Call returns the call of one plugin of the list.
func (t *T) Call(verb string, plugin int, a *Attachment, prev json.RawMessage) Call {
	keys := map[string]any{"cniVersion": a.Version}
	if prev != nil {
		keys["prevResult"] = prev
	}
	p := t.list().Plugins[plugin]
	if rc := p.runtimeConfig(a.Runtime); rc != nil {
		keys["runtimeConfig"] = rc
	}
	maps.Copy(keys, a.Keys)
	return Call{Type: p.Type, plugin: plugin, Verb: verb, Env: a.env(), Stdin: t.list().Conf(plugin, keys)}
}

// Exec runs a call.
func (t *T) Exec(c Call) Answer {
	a, err := t.Node.Exec(t.ctx, c)
	t.must(err)
	return a
}

// Add executes ADD of each plugin of the list, each with the result of the plugin
// before it, until a plugin fails, and returns the last answer (CNI 1.1, section 3,
// "Adding an attachment").
func (t *T) Add(a *Attachment) Answer {
	got, err := t.tryAdd(a)
	t.must(err)
	return got
}

// Del executes DEL of each plugin in reverse order, until a plugin fails, and returns
// the last answer (CNI 1.1, section 3, "Deleting an attachment").
func (t *T) Del(a *Attachment) Answer {
	got, err := t.tryDel(a)
	t.must(err)
	return got
}

// executor executes a call of one of the list's plugins.
type executor func(plugin int, c Call) (Answer, error)

func (t *T) execute(_ int, c Call) (Answer, error) { return t.Node.Exec(t.ctx, c) }

// tryAdd does what Add does, and tryDel does what Del does. They return errors, so that other
// goroutines than the check's can call them.
func (t *T) tryAdd(a *Attachment) (Answer, error) { return t.addBy(a, t.execute) }
func (t *T) tryDel(a *Attachment) (Answer, error) { return t.delBy(a, t.execute) }

// addBy is tryAdd, but the executor executes the calls.
func (t *T) addBy(a *Attachment, by executor) (last Answer, err error) {
	a.Result, a.steps = nil, nil
	for i := range t.list().Plugins {
		if last, err = by(i, t.Call("ADD", i, a, a.Result)); err != nil || !last.OK() {
			return last, err
		}
		a.Result = last.Stdout
		a.steps = append(a.steps, last.Stdout)
	}
	return last, nil
}

// delBy is tryDel, but the executor executes the calls.
func (t *T) delBy(a *Attachment, by executor) (last Answer, err error) {
	for i := len(t.list().Plugins) - 1; i >= 0; i-- {
		if last, err = by(i, t.Call("DEL", i, a, a.Result)); err != nil || !last.OK() {
			return last, err
		}
	}
	return last, nil
}

// newAttachments calls NewAttachment n times.
func (t *T) newAttachments(n int) []*Attachment {
	all := make([]*Attachment, n)
	for i := range all {
		all[i] = t.NewAttachment()
	}
	return all
}

// beside calls do for all attachments at once, and returns the answers. Where a plugin answers that the runtime should try again later, beside
// does that once the others have ended, one after the other.
func (t *T) beside(all []*Attachment, do func(*Attachment) (Answer, error)) []Answer {
	answers, errs := make([]Answer, len(all)), make([]error, len(all))
	t.queue = newQueue(t.ctx, t.suite.Timeout)
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() { answers[i], errs[i] = do(a) })
	}
	wg.Wait()
	t.queue.close()
	t.queue = nil
	t.must(errors.Join(errs...))
	again := 0
	for i, end := 0, time.Now().Add(t.suite.Timeout); i < len(all); i++ {
		if answers[i].later() {
			again++
		}
		for answers[i].later() && time.Now().Before(end) {
			time.Sleep(poll)
			answers[i], errs[i] = do(all[i])
			t.must(errs[i])
		}
	}
	if again > 0 {
		t.Notef("at once with others, %d of %d calls were answered with error 11, to try again later; the suite did that", again, len(all))
	}
	return answers
}

// Check executes CHECK of each plugin, until a plugin fails, and returns the last
// answer.
func (t *T) Check(a *Attachment) Answer {
	var last Answer
	for i := range t.list().Plugins {
		if last = t.Exec(t.Call("CHECK", i, a, a.Result)); !last.OK() {
			return last
		}
	}
	return last
}

// MustAdd is Add for an attachment that should work. If ADD fails, MustAdd ends the check.
func (t *T) MustAdd(a *Attachment) {
	if got := t.Add(a); !got.OK() {
		t.ordinaryFails(got)
	}
}

// ordinaryFails ends the check after an ADD that should work.
func (t *T) ordinaryFails(got Answer) {
	switch {
	case got.unsupported():
		t.Unsupportedf("%s: %s", lacks, got)
	case got.readOnly():
		t.Unsupportedf("%s: %s; %s", denied, got, t.writable())
	}
	t.Fatalf("an ordinary ADD fails: %s", got)
}

// lacks begins what the suite says of plugins that need something of the kernel, and denied what it says of those that write where they cannot here.
const (
	lacks  = "this kernel lacks something that the plugins need"
	denied = "the plugins need a file that the suite does not let them write"
)

// MustDel is Del for an attachment that should work. If DEL fails, MustDel ends the check.
func (t *T) MustDel(a *Attachment) {
	if got := t.Del(a); !got.OK() {
		t.Fatalf("an ordinary DEL fails: %s", got)
	}
}
