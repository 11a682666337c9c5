package former

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/root"
)

// caches are the runtimes' caches, below the root.
var caches = []string{"/var/lib/cni", "/var/lib/cni/cache"}

// defaultCNIDir is Multus's cniDir if its configuration names none.
const defaultCNIDir = "/var/lib/cni/multus"

// Read returns what former CNIs have left below a root: each attachment once, containers in the order of their IDs, and each container's
// attachments in the order of ADD. It reads the runtimes' caches, and Multus's files in the default cniDir, in those that the caches
// name, and in the given ones (a thick Multus has its cniDir in its daemon's configuration, where no cache has it).
//
// What cannot be read is a problem, and does not keep the rest. If two files speak of one attachment, the first counts, in the order of
// folders above, and the other is a problem. An error says that there may be attachments of which nothing was read.
//
// Runtimes may write meanwhile. A file that vanishes is of a pod that was deleted, and a file that is half written is a problem.
func Read(r root.Dir, cniDirs ...string) ([]Attachment, []Problem, error) {
	rd := newReader(r)
	for _, dir := range caches {
		if err := rd.cache(dir); err != nil {
			return nil, nil, err
		}
	}
	for _, dir := range rd.cniDirs(cniDirs) {
		err := rd.cache(dir)
		if err == nil {
			err = rd.scratches(dir)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return rd.attachments(), rd.problems, nil
}

// key identifies an attachment. The runtime's entry for Multus may have the key of a delegate: it is none.
type key struct {
	network, container, ifname string
	multus                     bool
}

type reader struct {
	root     root.Dir
	left     int // bytes that may still be read
	pods     map[string]*pod
	paths    map[key]string  // of the files that count
	seen     map[string]bool // folders
	problems []Problem
}

func newReader(r root.Dir) *reader {
	return &reader{root: r, left: maxTotal, pods: map[string]*pod{}, paths: map[key]string{}, seen: map[string]bool{}}
}

// attachments returns the attachments of all containers, and notes their problems.
func (rd *reader) attachments() []Attachment {
	var all []Attachment
	for _, container := range slices.Sorted(maps.Keys(rd.pods)) {
		attachments, problems := rd.pods[container].attachments()
		all = append(all, attachments...)
		rd.problems = append(rd.problems, problems...)
	}
	return all
}

// each reads the files of a folder that was not read yet. Of a file that parse refuses, there is a problem.
func (rd *reader) each(path string, parse func(path string, raw []byte, when time.Time) error) error {
	path = filepath.Clean(path)
	if rd.seen[path] {
		return nil
	}
	rd.seen[path] = true
	f := folder{rd.root, path}
	names, err := f.names()
	if err != nil {
		return fmt.Errorf("listing what a former CNI has left: %w", err)
	}
	for _, name := range names {
		raw, when, err := f.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if rd.left -= len(raw); rd.left < 0 {
			return fmt.Errorf("reading what a former CNI has left: the files have more than %d bytes together; remove those of pods that are gone", maxTotal)
		}
		if err == nil {
			err = parse(f.at(name), raw, when)
		}
		if err != nil {
			rd.problems = append(rd.problems, Problem{f.at(name), reason(err)})
		}
	}
	return nil
}

// cache reads libcni's cache in a folder.
func (rd *reader) cache(dir string) error {
	return rd.each(filepath.Join(dir, "results"), rd.entry)
}

// entry reads a file of libcni's cache.
func (rd *reader) entry(path string, raw []byte, when time.Time) error {
	e, err := parseEntry(path, raw)
	if err != nil || e.isLoopback() {
		return err
	}
	e.when = when
	return rd.add(e)
}

// add adds an entry of a cache to its container.
func (rd *reader) add(e *entry) error {
	k := key{e.Network, e.Container, e.Ifname, e.config.multus() >= 0}
	if first := rd.paths[k]; first != "" {
		return fmt.Errorf("%s speaks of the same attachment", first)
	}
	p := rd.pod(e.Container)
	if k.multus && p.multus != nil {
		return fmt.Errorf("%s says that Multus attached the container, too", p.multus.Path)
	}
	rd.paths[k] = e.Path
	if k.multus {
		p.multus = e
	} else {
		p.entries = append(p.entries, e)
	}
	return nil
}

func (rd *reader) pod(container string) *pod {
	if rd.pods[container] == nil {
		rd.pods[container] = &pod{container: container}
	}
	return rd.pods[container]
}

// cniDirs returns Multus's folders: the default one, those that entries name, and the given ones.
func (rd *reader) cniDirs(given []string) []string {
	dirs := []string{defaultCNIDir}
	for _, container := range slices.Sorted(maps.Keys(rd.pods)) {
		e := rd.pods[container].multus
		if e == nil {
			continue
		}
		dir, err := e.cniDir()
		if err != nil {
			rd.problems = append(rd.problems, Problem{e.Path, reason(err)})
		} else if dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return append(dirs, given...)
}

// scratches reads Multus's scratch files in its cniDir.
func (rd *reader) scratches(dir string) error { return rd.each(dir, rd.scratch) }

// scratch reads a scratch file, whose name is the container's ID.
func (rd *reader) scratch(path string, raw []byte, _ time.Time) error {
	container := filepath.Base(path)
	if cni.CheckContainerID(container) != nil {
		return errors.New("its name is no container's ID")
	}
	s, err := parseScratch(path, raw)
	if err != nil {
		return err
	}
	p := rd.pod(container)
	if p.scratch != nil {
		return fmt.Errorf("%s speaks of the same container", p.scratch.path)
	}
	p.scratch = s
	return nil
}
