package conform

import (
	"fmt"

	"github.com/berth-net/berth/conform/oracle"
)

// suiteDir is the suite's own folder on a node.
const suiteDir = volatile + "/conform"

// Look returns what the oracle sees on the node: everything in its network namespace, processes, System V shared memory,
// mounts, and files in all folders that plugins can write.
func (n *Node) Look() (oracle.State, error) {
	var all oracle.State
	err := n.Do(func() error {
		for _, read := range []func() (oracle.State, error){oracle.LookAll, oracle.Processes, oracle.SharedMemory, oracle.AllMounts} {
			seen, err := read()
			if err != nil {
				return err
			}
			all = all.And(seen)
		}
		return nil
	})
	if err != nil {
		return all, err
	}
	files, err := n.files()
	// Pods' paths are mounts, too, and the suite mounts the boot's id and what is below suiteDir.
	return all.And(files).But(append(n.podFiles(),
		"mount "+netnsDir+"/", "mount "+bootID+" ", "file "+suiteDir+" ", "file "+suiteDir+"/", "file-content "+suiteDir+"/")), err
}

// files returns the files in the state folders and in /run, and which containers they mention; and what was written in the
// folders that have overlays, and pinned in the file system of eBPF. Files of those folders may be logs, which mention who wants.
func (n *Node) files() (oracle.State, error) {
	var all oracle.State
	list := func(dir, as string) error {
		files, err := oracle.Files(dir)
		if err != nil {
			return fmt.Errorf("looking into %s: %w", dir, err)
		}
		all = all.And(files.Below(as))
		return nil
	}
	folders := []string{volatile}
	for _, dir := range n.suite.StateDirs {
		if !within(dir, volatile) {
			folders = append(folders, dir)
		}
	}
	for _, dir := range folders {
		if err := list(dir, dir); err != nil {
			return all, err
		}
		mentions, err := oracle.Mentions(dir, anyID)
		if err != nil {
			return all, fmt.Errorf("reading in %s: %w", dir, err)
		}
		all = all.And(mentions)
	}
	for i, dir := range n.store.overlays {
		if err := list(upper(overlayAt(i)), dir); err != nil {
			return all, err
		}
	}
	if n.store.pinned {
		return all, list(pins, pins)
	}
	return all, nil
}
