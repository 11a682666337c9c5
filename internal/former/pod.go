package former

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// pod is what the files say of a container.
type pod struct {
	container string
	entries   []*entry
	multus    *entry // the runtime's entry for Multus
	scratch   *scratch
}

// attachments returns a container's attachments in the order of ADD: those of Multus's scratch file, then others as libcni wrote them.
func (p *pod) attachments() ([]Attachment, []Problem) {
	slices.SortFunc(p.entries, compare)
	left := map[[2]string]*entry{}
	for _, e := range p.entries {
		left[[2]string{e.Network, e.Ifname}] = e
	}
	all, problems := p.delegated(left)
	for _, e := range p.entries {
		if left[[2]string{e.Network, e.Ifname}] == e {
			all = append(all, e.Attachment)
		}
	}
	if p.multus != nil {
		if len(all) == 0 {
			problems = append(problems, Problem{p.multus.Path, "Multus attached the pod, and has left no delegates"})
		}
		rest, err := p.multus.rest()
		if err != nil {
			problems = append(problems, Problem{p.multus.Path, reason(err)})
		} else if rest != nil {
			all = append(all, *rest)
		}
	}
	return p.beside(all), problems
}

// beside gives the first attachment the container's own files.
func (p *pod) beside(all []Attachment) []Attachment {
	if len(all) == 0 {
		return nil
	}
	first := &all[0]
	if p.scratch != nil && p.scratch.path != first.Path {
		first.Beside = append(first.Beside, p.scratch.path)
	}
	if p.multus != nil && p.multus.Path != first.Path {
		first.Beside = append(first.Beside, p.multus.Path)
	}
	return all
}

// delegated returns the attachments of the scratch file's delegates, and takes their entries away from those that are left.
func (p *pod) delegated(left map[[2]string]*entry) (all []Attachment, problems []Problem) {
	if p.scratch == nil {
		return nil, nil
	}
	seen := map[[2]string]bool{}
	for i := range p.scratch.delegates {
		a, err := p.delegate(i, left, seen)
		if err != nil {
			problems = append(problems, Problem{p.scratch.path, fmt.Sprintf("delegate %d: %s", i+1, reason(err))})
			continue
		}
		all = append(all, *a)
	}
	return all, problems
}

// delegate returns the attachment of a delegate: its entry in the cache, or what Multus itself would execute DEL with.
func (p *pod) delegate(i int, left map[[2]string]*entry, seen map[[2]string]bool) (*Attachment, error) {
	d := &p.scratch.delegates[i]
	c, err := d.config()
	if err != nil {
		return nil, err
	}
	if c.multus() >= 0 {
		return nil, errors.New("it is Multus again")
	}
	own := "eth0" // as runtimes call it
	if p.multus != nil {
		own = p.multus.Ifname
	}
	ifname := d.ifname(i, own)
	if err := checkKey(p.container, ifname); err != nil {
		return nil, err
	}
	key := [2]string{c.name, ifname}
	if seen[key] {
		return nil, fmt.Errorf("another one has attached %s to network %s", ifname, c.name)
	}
	seen[key] = true
	if e := left[key]; e != nil {
		delete(left, key)
		a := e.Attachment
		if len(d.CNINetworkConfigList.Plugins) > 0 {
			a.Plugins, err = c.configure(e.capabilities)
		}
		return &a, err
	}
	return p.cutShort(i, c, ifname)
}

// cutShort returns the attachment of a delegate that no cache has: its ADD did not succeed, or its DEL has.
func (p *pod) cutShort(i int, c *config, ifname string) (*Attachment, error) {
	a := Attachment{
		Container: p.container, Ifname: ifname, Network: c.name, Version: c.version, DisableCheck: c.disableCheck,
		Path: p.scratch.path, NoResult: "no cache has a result",
	}
	d, like := &p.scratch.delegates[i], p.multus
	values := d.values(i, nil)
	if like != nil {
		values = d.values(i, like.offered())
	} else if len(p.entries) > 0 {
		like = p.entries[0]
	}
	if like != nil {
		a.Netns, a.Pod, a.Args = like.Netns, like.Pod, argsText(slices.DeleteFunc(slices.Clone(like.args), notOfPod))
	}
	var err error
	a.Plugins, err = c.configure(values)
	return &a, err
}

// notOfPod reports whether an argument is of one delegate alone (Multus, DelegateAdd: MAC and IP).
func notOfPod(arg [2]string) bool {
	return arg[0] != "IgnoreUnknown" && !strings.HasPrefix(arg[0], "K8S_")
}

// rest returns what is to release of the runtime's entry for Multus, beside the delegates: the other plugins of its list, if it has
// any. They came after the delegates, since a list begins with the plugin that attaches the pod.
func (e *entry) rest() (*Attachment, error) {
	c := *e.config
	c.plugins = slices.Delete(slices.Clone(c.plugins), c.multus(), c.multus()+1)
	if len(c.plugins) == 0 {
		return nil, nil
	}
	a := e.Attachment
	var err error
	a.Plugins, err = c.configure(e.capabilities)
	return &a, err
}

// compare orders a container's entries by when libcni wrote them, which it does after each ADD. A clock of some milliseconds may be the
// same for two: then eth0 comes before net1, and net9 before net10.
func compare(a, b *entry) int {
	return cmp.Or(a.when.Compare(b.when), cmp.Compare(len(a.Ifname), len(b.Ifname)), cmp.Compare(a.Ifname, b.Ifname), cmp.Compare(a.Network, b.Network))
}
