package ports

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/kernel/nft"
)

// busy is a node on which another program keeps nftables busy until `ends` is closed.
type busy struct {
	Node
	ends chan struct{}
}

func (b busy) OtherPorts() (map[string][]nft.Port, error) {
	<-b.ends
	return nil, nil
}

// What other agents have left holds up neither a start nor a sweep for longer than anything else that hangs.
func TestClearLeftWhileNftablesIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := busy{ends: make(chan struct{})}
		p := New(nil, attachment.NewIndex(), masquerades{}, b)
		began := time.Now()
		for range 2 {
			if err := p.ClearLeft(); err == nil {
				t.Error("ClearLeft says that nothing is left")
			}
		}
		if took := time.Since(began); took > leftLimit {
			t.Errorf("it took %s", took)
		}
		close(b.ends)
		synctest.Wait()
		time.Sleep(time.Minute)
		if err := p.ClearLeft(); err != nil {
			t.Error(err)
		}
	})
}
