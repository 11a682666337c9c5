package cluster

import "testing"

func TestPods(t *testing.T) {
	c := startCluster(t, 0)
	t.Log(c.mustKubectl("get", "all", "-A"))
}
