package action

import (
	"encoding/xml"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/conform"
)

// runner is what GitHub gives to a step: folders, files and variables.
type runner struct {
	*testing.T
	dir    string
	inputs map[string]string
	path   string   // of programs that go before the machine's own
	rest   string   // where the machine's own are
	env    []string // what the job sets besides
}

// newRunner returns a runner whose workspace has a plugin that refuses all, and a list for it.
func newRunner(t *testing.T) *runner {
	t.Helper()
	r := &runner{T: t, dir: t.TempDir(), inputs: map[string]string{
		"BIN_DIR": "bin", "CONF": "\n  net.conflist\n", "STATE_DIR": "state one\nstate-two\n", "HOOK_DIR": "", "RUN": "^basic/",
		"FAIL_ON": "own", "KNOWN": "", "REPEAT": "1", "OUTPUT": "reports/here", "VERSION": "",
		"IFNAME": "", "GRACE": "", "TIMEOUT": "", "POINTS": "", "CHURN": "", "PRIVILEGE": "auto",
	}, rest: os.Getenv("PATH")}
	r.path = filepath.Join(r.dir, "first")
	must(t, os.Chmod(r.dir, 0o755))
	r.write("work/bin/refuses", `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}' ;;
*) echo '{"cniVersion": "1.1.0", "code": 11, "msg": "not </pre> now"}'; exit 1 ;;
esac
`)
	r.write("work/net.conflist", `{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "refuses"}]}`)
	r.write("work/known.json", `[{"check": "basic/attach", "reason": "so it is"}]`)
	r.write("first/sudo", "#!/bin/sh\nexit 1\n") // whatever this machine's sudo allows
	for _, d := range []string{"work/state one", "work/state-two", "temp"} {
		must(t, os.MkdirAll(filepath.Join(r.dir, d), 0o755))
	}
	return r
}

func (r *runner) write(name, content string) {
	r.Helper()
	path := filepath.Join(r.dir, name)
	must(r.T, os.MkdirAll(filepath.Dir(path), 0o755))
	must(r.T, os.WriteFile(path, []byte(content), 0o755))
}

func (r *runner) read(name string) string {
	raw, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.Error(err)
	}
	return string(raw)
}

// judge runs the script as GitHub does, and returns its exit code and the log.
func (r *runner) judge() (code int, log string) {
	r.Helper()
	here, err := os.Getwd()
	must(r.T, err)
	cmd := exec.Command(filepath.Join(here, "judge"))
	cmd.Dir = filepath.Join(r.dir, "work")
	cmd.Env = append(append(os.Environ(), r.env...), "PATH="+r.path+":"+r.rest, "GITHUB_ACTION_PATH="+here, "RUNNER_TEMP="+filepath.Join(r.dir, "temp"),
		"GITHUB_OUTPUT="+filepath.Join(r.dir, "output"), "GITHUB_STEP_SUMMARY="+filepath.Join(r.dir, "summary"))
	for name, value := range r.inputs {
		cmd.Env = append(cmd.Env, "INPUT_"+name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// stands has the action install a program that stands for cni-conform. What installs it notes how that was called in the file "go".
func (r *runner) stands(program string) {
	r.Helper()
	r.inputs["VERSION"] = "v1.2.3"
	r.write("stands", "#!/bin/sh\n"+program+"\n")
	r.write("first/go", `#!/bin/sh
echo "$@" >`+r.dir+`/go
cp `+r.dir+`/stands "$GOBIN/cni-conform"
`)
}

// want fails the test if a text lacks one of parts.
func (r *runner) want(what, text string, parts ...string) {
	r.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			r.Errorf("%s lacks %q:\n%s", what, part, text)
		}
	}
}

// A plugin that is bad fails the step. The reports are there, and so is the summary, which the plugin's words cannot end.
func TestBadPlugin(t *testing.T) {
	r := newRunner(t)
	code, log := r.judge()
	if code != 1 {
		t.Fatalf("exit code %d: %s", code, log)
	}
	r.want("the log", log, "  fail         attach", "not </pre> now")
	r.want("the summary", r.read("summary"), "<pre>\n", "  fail         attach", "not &lt;/pre> now")
	r.want("the outputs", r.read("output"), "json=reports/here/report.json\n", "junit=reports/here/report.xml\n")
	report, err := conform.ReadReport(filepath.Join(r.dir, "work/reports/here/report.json"))
	must(t, err)
	if dirs := report.Parameters.StateDirs; len(dirs) != 2 || !strings.HasSuffix(dirs[0], "/state one") || report.Parameters.Run != "^basic/" {
		t.Errorf("the parameters are %+v", report.Parameters)
	}
	junit := r.read("work/reports/here/report.xml")
	r.want("JUnit", junit, `type="fail"`)
	must(t, xml.Unmarshal([]byte(junit), new(any)))
}

// Failures that are known fail no step.
func TestKnownFailures(t *testing.T) {
	r := newRunner(t)
	r.inputs["KNOWN"], r.inputs["RUN"] = "known.json", "^basic/attach"
	code, log := r.judge()
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	r.want("the log", log, "so it is")
}

// Where nothing can be judged, the step fails and says why, and there are no reports.
func TestNothingJudged(t *testing.T) {
	r := newRunner(t)
	r.inputs["CONF"] = "none.conflist"
	code, log := r.judge()
	if code != 2 {
		t.Errorf("exit code %d", code)
	}
	r.want("the log", log, "none.conflist: no such file")
	if said := r.read("output") + r.read("summary") + r.read("work/reports/here/report.xml"); said != "" {
		t.Errorf("nothing was judged, and yet there is %q", said)
	}
}

// Who may become root judges as root, and finds programs where the step finds them.
func TestSudo(t *testing.T) {
	r := newRunner(t)
	r.write("first/id", "#!/bin/sh\necho 1000\n")
	r.write("first/sudo", `#!/bin/sh
test "$1" = -n || exit 1
shift
echo "$@" >>`+r.dir+`/sudo
exec "$@"
`)
	if code, log := r.judge(); code != 1 {
		t.Errorf("exit code %d: %s", code, log)
	}
	r.want("what root runs", r.read("sudo"), "env PATH="+r.path+":", "/temp/cni-conform/cni-conform --bin-dir bin --conf net.conflist --state-dir state one")
}

// Another version of the suite comes from its module.
func TestVersion(t *testing.T) {
	r := newRunner(t)
	r.stands("exit 7")
	if code, log := r.judge(); code != 7 {
		t.Errorf("exit code %d: %s", code, log)
	}
	r.want("what is installed", r.read("go"), "install github.com/berth-net/berth/conform/cmd/cni-conform@v1.2.3\n")
}
