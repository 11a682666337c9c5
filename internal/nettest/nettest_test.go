package nettest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
)

func TestMain(m *testing.M) { Main(m) }

func TestCommandRunsInside(t *testing.T) {
	node := Node(t)
	out, err := Command(node, "readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(node.Ref().String(), "(")
	if got := strings.TrimSpace(string(out)); got != strings.TrimSuffix(want, ")") {
		t.Errorf("the command ran in %s, not in %s", got, node.Ref())
	}
	if out, err := exec.Command("readlink", "/proc/self/ns/net").Output(); err != nil || strings.Contains(string(want), strings.TrimSpace(string(out))) {
		t.Errorf("commands without Command run in %s too (%v)", out, err)
	}
}

func TestDeleteEarly(t *testing.T) {
	pod := Pod(t)
	path := pod.Ref().Path
	Delete(t, pod)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("%s after Delete: %v", path, err)
	}
	Delete(t, pod)
	if _, err := ns.Open(path); err == nil {
		t.Errorf("%s can be opened after Delete", path)
	}
}
