package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// A FIFO in the place of berthd.yaml is an error, and Load does not wait for it. Load reads
// a FIFO that --config names, such as a shell's <(), but not again.
func TestConfigFromAFIFO(t *testing.T) {
	dir := root.Dir(t.TempDir())
	nettest.Must(t, os.MkdirAll(filepath.Dir(dir.Config()), 0o700))
	nettest.Must(t, unix.Mkfifo(dir.Config(), 0o600))
	if _, err := config.Load(dir, config.Flags{}); !errors.Is(err, root.ErrIrregular) {
		t.Errorf("in its place: %v", err)
	}
	if _, err := config.Load(dir, config.Flags{File: dir.Config(), Again: true}); !errors.Is(err, root.ErrIrregular) {
		t.Errorf("named, and read again: %v", err)
	}
	go func() { _ = os.WriteFile(dir.Config(), []byte("pools: [{name: p, cidrs: [10.0.0.0/24]}]\n"), 0) }()
	if c, err := config.Load(dir, config.Flags{File: dir.Config()}); err != nil || len(c.Pools) != 1 {
		t.Errorf("named: %+v, %v", c, err)
	}
}
