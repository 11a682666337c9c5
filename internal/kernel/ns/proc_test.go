package ns_test

import (
	"strconv"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// Each namespace shows its own values, however often Berth renews the proc file system
// from which it reads the values; and Berth closes the proc file systems that it replaced.
func TestSysctlOfManyNamespaces(t *testing.T) {
	nettest.Need(t)
	const name = "ipv4/conf/default/log_martians"
	pods := []*ns.Netns{nettest.Pod(t), nettest.Pod(t)}
	for i, pod := range pods {
		must(t, pod.Do(func() error { return ns.SetSysctl(name, strconv.Itoa(i)) }))
	}
	for n := range 1000 {
		i := n % len(pods)
		var got string
		err := pods[i].Do(func() (err error) { got, err = ns.Sysctl(name); return err })
		if err != nil || got != strconv.Itoa(i) {
			t.Fatalf("after %d reads, pod %d has %q, %v", n, i, got, err)
		}
	}
	before := openFiles(t)
	for range 1000 {
		if _, err := ns.Sysctl(name); err != nil {
			t.Fatal(err)
		}
	}
	nettest.Eventually(t, "former proc file systems to be closed", func() bool { return openFiles(t) <= before+1 })
	if _, err := ns.Sysctl("../kernel/hostname"); err == nil {
		t.Error("a name leads out of net")
	}
}
