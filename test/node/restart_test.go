package node

import (
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// An ADD that finds no agent, because the agent is restarting, waits for the agent: a runtime would
// repeat a failed ADD only after a pause.
func TestAddWhileTheAgentRestarts(t *testing.T) {
	for name, end := range map[string]func(*agent){"killed": (*agent).kill, "stopped": (*agent).stop} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, pools)
			pod, other := nettest.Pod(t), nettest.Pod(t)
			a.add("other", other)
			end(a)
			goOn := a.stoppedVerb("net", "ADD", "connect", "c", pod.Ref().Path, `"addWait":"50s"`) // behind its first try
			a.start()
			goOn()
			if all := a.list(); len(all) != 2 {
				t.Errorf("attached are %+v", all)
			}
		})
	}
}
