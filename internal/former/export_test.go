package former

import "time"

// ReadTexts is Read of a file in a runtime's cache, one in Multus's cache and a scratch file, which need not lie anywhere.
func ReadTexts(runtime, delegate, scratch string) (all []Attachment, problems []Problem) {
	rd := newReader("")
	for _, f := range []struct {
		path, text string
		parse      func(string, []byte, time.Time) error
	}{
		{RuntimePath, runtime, rd.entry}, {DelegatePath, delegate, rd.entry}, {ScratchPath, scratch, rd.scratch},
	} {
		if err := f.parse(f.path, []byte(f.text), time.Time{}); err != nil {
			rd.problems = append(rd.problems, Problem{f.path, reason(err)})
		}
	}
	rd.cniDirs(nil)
	return rd.attachments(), rd.problems
}

// Paths of ReadTexts.
const (
	RuntimePath  = "/var/lib/cni/results/n-b-eth0"
	DelegatePath = "/var/lib/cni/multus/results/n-b-eth0"
	ScratchPath  = "/var/lib/cni/multus/b"
)
