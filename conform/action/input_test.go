package action

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Inputs become flags, without the blanks around them. An empty one becomes none.
func TestFlags(t *testing.T) {
	r := newRunner(t)
	r.stands(`echo "the flags: $*" >&2`)
	for name, value := range map[string]string{
		"IFNAME": "eth7", "GRACE": "7s", "TIMEOUT": " 1m\n", "POINTS": "3", "CHURN": "20", "FAIL_ON": "\nshould\n", "RUN": "",
		"CONF": "a.conflist\n\n  b.conflist ", "STATE_DIR": "",
	} {
		r.inputs[name] = value
	}
	_, log := r.judge()
	r.want("the log", log, "the flags: --bin-dir bin --conf a.conflist --conf b.conflist --repeat 1 --ifname eth7 --grace 7s --timeout 1m --points 3 --churn 20 --fail-on should --output json\n")
}

// Whatever fail-on looks like, the forms of the report are made.
func TestFailOn(t *testing.T) {
	for _, value := range []string{"", "must\n"} {
		r := newRunner(t)
		r.inputs["FAIL_ON"] = value
		code, log := r.judge()
		if code != 1 {
			t.Errorf("%q: exit code %d", value, code)
		}
		r.want("the log", log, "  fail         attach")
		r.want("the outputs", r.read("output"), "json=reports/here/report.json\n")
	}
}

// An input that is wrong fails the step before anything is built, and the log names the input.
func TestBadInput(t *testing.T) {
	for _, bad := range []struct{ name, value, want string }{
		{"BIN_DIR", "one\ntwo", "input bin-dir $'one\\ntwo': expected a single line"},
		{"RUN", "a\nb", "input run $'a\\nb': expected"},
		{"OUTPUT", "here\nevil=1", "input output $'here\\nevil=1': expected"},
		{"OUTPUT", " \n", "input output: expected a folder"},
		{"PRIVILEGE", "admin", "input privilege admin: expected user, auto or root"},
	} {
		r := newRunner(t)
		r.stands("exit 7")
		r.inputs[bad.name] = bad.value
		code, log := r.judge()
		if code != 2 || r.read("go") != "" || r.read("output") != "" {
			t.Errorf("%s: exit code %d, %q is installed, the outputs are %q", bad.name, code, r.read("go"), r.read("output"))
		}
		r.want("the log", log, "cni-conform: "+bad.want)
	}
}

// A folder may have a name that looks like a flag.
func TestOutputFolder(t *testing.T) {
	r := newRunner(t)
	r.inputs["OUTPUT"] = "-x"
	if code, log := r.judge(); code != 1 {
		t.Errorf("exit code %d: %s", code, log)
	}
	r.want("JUnit", r.read("work/-x/report.xml"), `type="fail"`)
}

// Who judges: the user, or root.
func TestPrivilege(t *testing.T) {
	for _, one := range []struct {
		privilege, id string
		sudo          bool // root without a password
		want          string
	}{
		{"user", "1000", true, "judging for user"},
		{"user", "0", true, "input privilege user: this step runs as root already"},
		{"auto", "1000", true, "judging for root"},
		{"auto", "1000", false, "judging for user"},
		{"auto", "0", false, "judging for user"},
		{"", "1000", true, "judging for root"},
		{"root", "1000", true, "judging for root"},
		{"root", "0", false, "judging for user"},
		{"root", "1000", false, "input privilege root: sudo does not let"},
	} {
		r := newRunner(t)
		r.stands(`echo "judging for ${BY_SUDO:-user}" >&2`)
		r.inputs["PRIVILEGE"] = one.privilege
		r.write("first/id", "#!/bin/sh\necho "+one.id+"\n")
		if one.sudo {
			r.write("first/sudo", "#!/bin/sh\ntest \"$1\" = -n || exit 1\nshift\nBY_SUDO=root exec \"$@\"\n")
		}
		_, log := r.judge()
		r.want(one.privilege+" for user "+one.id, log, one.want)
	}
}

// A runner that cannot judge says what it lacks.
func TestOtherRunner(t *testing.T) {
	r := newRunner(t)
	r.write("first/uname", "#!/bin/sh\necho Darwin\n")
	code, log := r.judge()
	if code != 2 {
		t.Errorf("exit code %d on another system", code)
	}
	r.want("the log", log, "this runner is Darwin: CNI plugins need a runner with Linux")

	r = newRunner(t)
	for _, name := range []string{"bash", "uname"} {
		path, err := exec.LookPath(name)
		must(t, err)
		must(t, os.Symlink(path, filepath.Join(r.path, name)))
	}
	r.rest = r.path
	code, log = r.judge()
	if code != 2 {
		t.Errorf("exit code %d without Go", code)
	}
	r.want("the log", log, "there is no Go on this runner")
}

// What the job sets for its own programs does not change how the suite is built.
func TestBuildOfAnother(t *testing.T) {
	r := newRunner(t)
	r.env = []string{"GOOS=plan9", "GOARCH=mips", "GOFLAGS=-mod=vendor", "GOWORK=/nonexistent/go.work"}
	_, log := r.judge()
	r.want("the log", log, "  fail         attach")
}

// The runner takes nothing for a command that a plugin says.
func TestCommandsOfPlugins(t *testing.T) {
	r := newRunner(t)
	r.write("work/bin/refuses", `#!/bin/sh
echo '{"cniVersion": "1.1.0", "code": 11, "msg": "a\n::error::of the plugin"}'; exit 1
`)
	words := map[string]bool{}
	for _, conf := range []string{"net.conflist", "none.conflist"} {
		r.inputs["CONF"] = conf
		_, log := r.judge()
		_, rest, _ := strings.Cut(log, "::stop-commands::")
		word, rest, _ := strings.Cut(rest, "\n")
		inside, after, found := strings.Cut(rest, "\n::"+word+"::\n")
		if len(word) != 32 || words[word] || !found || after != "" {
			t.Fatalf("the log does not stop the runner's commands until its end, by a word of its own:\n%s", log)
		}
		words[word] = true
		if conf == "net.conflist" {
			r.want("the log", inside, "::error::of the plugin")
		}
	}
}
