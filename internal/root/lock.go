package root

import "fmt"

// Lock returns the path of the file that the agent of an instance locks for as long as it
// lives. The file is not below a root, so that agents on copies of one root have the same:
// each would undo what the other does. Agents in different network namespaces may run at
// once, so netns, the namespace's inode, is part of the name.
func Lock(instance string, netns uint64) string {
	return fmt.Sprintf("/run/berth-%s-%d.lock", instance, netns)
}
