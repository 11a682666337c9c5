package hostile

import (
	"debug/elf"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/test/programs"
)

// The programs need nothing of the node but its kernel: no dynamic linker, which
// another's libraries could reach by way of its configuration, and which not every
// node has. The Makefile says what else a PIE costs.
func TestProgramsAreStatic(t *testing.T) {
	bin := programs.Own(t)
	for _, name := range []string{"berth", "berthd", "berth-cni"} {
		f, err := elf.Open(filepath.Join(bin, name))
		must(t, err)
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s has a segment %s: it needs a dynamic linker", name, p.Type)
			}
		}
	}
}
