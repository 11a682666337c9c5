package oracle

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketAddress(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"B80D0120000000000000000001000000:0035": "[2001:db8::1]:53",
	} {
		if got, err := address(text); err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s is %s (%v), not %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0100007F", "0100007F:zz", "01:01", "0100007F0100007F:1F90"} {
		if got, err := address(text); err == nil {
			t.Errorf("%q is %s, and no error", text, got)
		}
	}
}

// FuzzSocketAddress reads whatever stands for an address.
func FuzzSocketAddress(f *testing.F) {
	f.Add("0100007F:1F90")
	f.Add("B80D0120000000000000000001000000:0035")
	f.Fuzz(func(t *testing.T, text string) {
		if at, err := address(text); err == nil && !at.IsValid() {
			t.Errorf("%q is an address that is not valid", text)
		}
	})
}

// A socket of another process is told; those of the process that looks are not.
func TestSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	told := func() bool {
		lines, err := sockets()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(strings.Join(lines, "\n"), "socket unix "+path)
	}
	if told() {
		t.Error("an own socket is told")
	}
	// A copy in a child, which outlives the own descriptor.
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	l.SetUnlinkOnClose(false)
	f.Close()
	l.Close()
	if !told() {
		t.Error("a socket of another process is not told")
	}
}
