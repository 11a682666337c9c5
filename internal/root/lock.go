package root

import "fmt"

// Lock is the file that the agent of an instance locks for as long as it lives. It is
// not below a root, so that agents on copies of one root have the same: they would undo
// what the other does. In another network namespace, whose inode this is, they may live.
func Lock(instance string, netns uint64) string {
	return fmt.Sprintf("/run/berth-%s-%d.lock", instance, netns)
}
