//go:build e2e

package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// The images that Kubernetes' tests of networks run everything in (test/utils/image/manifest.go).
const (
	agnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
	glibcImage   = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0"
	pauseImage   = "registry.k8s.io/pause:3.10.2"
)

// libraries returns the files of a program of the test's machine, and of the libraries that it needs.
func libraries(t *testing.T, name string) (files []programs.File) {
	t.Helper()
	path := found(t, name)
	out, err := exec.Command("ldd", path).Output()
	must(t, err)
	for _, p := range append(regexp.MustCompile(`/\S+`).FindAllString(string(out), -1), path) {
		content, err := os.ReadFile(p)
		must(t, err)
		files = append(files, programs.File{Name: strings.TrimPrefix(p, "/"), Mode: 0o755, Content: content})
	}
	return files
}

// writeAgnhost writes an image like Kubernetes' agnhost into a file: agnhost and the certificate that it serves with, a shell, curl, the
// programs that ask a DNS, and pod in nc's place. It is an image like glibc-dns-testing, too, because all programs have glibc here.
func writeAgnhost(t *testing.T, c *cluster, name string) (file string) {
	t.Helper()
	files := programs.Busybox(t, "cat", "echo", "sleep", "test", "timeout", "true", "false", "hostname", "grep", "ls", "wget", "date", "seq", "tr", "sort")
	keys := filepath.Join(c.disk, "etc/kubernetes")
	for to, from := range map[string]string{
		"agnhost": c.program("agnhost"), "bin/nc": c.pod, "localhost.crt": filepath.Join(keys, "api.crt"), "localhost.key": filepath.Join(keys, "api.key"),
	} {
		content, err := os.ReadFile(from)
		must(t, err)
		files = append(files, programs.File{Name: to, Mode: 0o755, Content: content})
	}
	for _, program := range []string{"curl", "dig", "nslookup", "getent", "dash"} { // busybox's own shell would take busybox's own nc
		files = append(files, libraries(t, program)...)
	}
	files = append(files, programs.File{Name: "bin/sh", Mode: 0o777, Link: found(t, "dash")},
		programs.File{Name: "etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/:/bin/sh\n")})
	file = filepath.Join(t.TempDir(), "agnhost.tar")
	must(t, programs.Image{Name: name, Entrypoint: []string{"/agnhost"}, Command: []string{"pause"}, Path: "/bin:/usr/bin:/", Files: files}.Write(file))
	return file
}

// writePause writes an image like Kubernetes' pause into a file.
func writePause(t *testing.T, pod string) (file string) {
	t.Helper()
	content, err := os.ReadFile(pod)
	must(t, err)
	file = filepath.Join(t.TempDir(), "pause.tar")
	must(t, programs.Image{Name: pauseImage, Command: []string{"/pod", "pause"}, Files: []programs.File{{Name: "pod", Mode: 0o755, Content: content}}}.Write(file))
	return file
}

// spec is what Ginkgo reports of one.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	State                   string
	RunTime                 int64 // ns
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

// Kubernetes' own conformance tests of networks (sig-network) pass, all of them.
func TestUpstream(t *testing.T) {
	c := startCluster(t, 3, 3)
	if _, err := os.Stat(filepath.Join(c.bin, ".stamp-e2e")); err != nil {
		programs.Missing(t, "Kubernetes' tests are missing: run `make test-e2e`")
	}
	images := []string{writeAgnhost(t, c, agnhostImage), writeAgnhost(t, c, glibcImage), writePause(t, c.pod)}
	for _, n := range c.nodes {
		for _, image := range images {
			n.load(image)
		}
		for _, cidr := range c.cidrs(n.name) { // the API server reaches pods for those who ask it to; its machine is no node
			via := n.address4()
			if strings.Contains(cidr, ":") {
				via = n.address6()
			}
			nettest.Run(t, nil, "ip route add "+cidr+" via "+via)
		}
	}
	empty := c.states()
	c.startDNS(t)
	focus := `\[sig-network\].*\[Conformance\]`
	if only := os.Getenv("E2E_FOCUS"); only != "" {
		focus = only
	}
	args := []string{"--procs=6", "--no-color", "--focus=" + focus} // most of a spec's time is waiting
	args = append(args, c.program("e2e.test"), "--", "--kubeconfig=/etc/kubernetes/"+admin, "--provider=skeleton",
		"--kubectl-path="+c.program("kubectl"), "--report-dir=/var/tmp/e2e", "--report-complete-ginkgo", "--dump-logs-on-failure=false")
	said, failed := c.run(c.program("ginkgo"), args...)
	must(t, os.WriteFile(filepath.Join(t.ArtifactDir(), "e2e.log"), []byte(said), 0o644))
	raw, err := os.ReadFile(filepath.Join(c.disk, "var/tmp/e2e/ginkgo/report.json"))
	if err != nil {
		t.Fatalf("%v; the tests ended: %v\n%s", err, failed, said)
	}
	judge(t, focus, raw)
	c.stopDNS()
	c.nothingLeft(empty)
}

// judge counts the specs of a report, and says what became of each. One that was skipped has not passed.
func judge(t *testing.T, focus string, raw []byte) {
	t.Helper()
	var suites []struct{ SpecReports []spec }
	must(t, json.Unmarshal(raw, &suites))
	chosen, counts := regexp.MustCompile(focus), map[string]int{}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			if s.LeafNodeText == "" || !chosen.MatchString(s.name()) {
				continue
			}
			counts[s.State]++
			t.Logf("%s after %.1f s: %s", s.State, float64(s.RunTime)/1e9, s.name())
			if s.State != "passed" {
				t.Errorf("%s: %s\n%s", s.State, s.name(), s.Failure.Message)
			}
		}
	}
	t.Log(fmt.Sprint("specs: ", counts))
	if counts["passed"] == 0 {
		t.Error("no spec has passed")
	}
}
