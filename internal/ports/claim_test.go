package ports

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// An ADD comes at the moment in which the ledger has forgotten the pod that had the port, and the
// view has not heard of it. The ADD waits until this moment is over, and gets the port.
func TestClaimOfWhatIsBeingForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	synctest.Test(t, func(t *testing.T) {
		p := New(&daemon.Core{}, attachment.NewIndex(), masquerades{}, others{})
		m := at("tcp", "0.0.0.0:80")
		o := hold.Owner{ID: "first22222", Names: []hold.Name{hostports.Name(m)}}
		told := make(chan struct{})
		var err error
		p.Ledger, err = ledger.Open(ledger.Options{Path: path, Applied: func(c ledger.Change) {
			if c.Owners[0].After == nil {
				<-told
			}
			p.Follow(c)
		}})
		nettest.Must(t, err)
		defer p.Ledger.Close()
		nettest.Must(t, p.Ledger.Commit(t.Context(), ledger.Begin(o)))
		nettest.Must(t, p.Ledger.Commit(t.Context(), ledger.Releasing(o.ID, time.Now())))
		forgotten, claimed := make(chan error, 1), make(chan error, 1)
		go func() { forgotten <- p.Ledger.Commit(t.Context(), ledger.Forget(o.ID, time.Now())) }()
		synctest.Wait()
		go func() {
			_, err := p.Claim(t.Context(), "second2222", []nft.Mapping{m})
			claimed <- err
		}()
		synctest.Wait()
		close(told)
		nettest.Must(t, <-claimed)
		nettest.Must(t, <-forgotten)
	})
}

// Claim refuses a port that another agent of the node maps, as it refuses a port that this
// agent has given, and refuses no other port.
func TestClaimOfAnotherAgentsPort(t *testing.T) {
	theirs := map[string][]nft.Port{"berth-other": {
		{Owner: "theirs2222", Mapping: at("tcp", "0.0.0.0:80")},
		{Owner: "theirs2222", Mapping: at("udp", "192.0.2.1:53")},
	}}
	p := New(&daemon.Core{}, attachment.NewIndex(), masquerades{}, others{ports: theirs})
	for _, test := range []struct {
		want  nft.Mapping
		taken bool
	}{
		{at("tcp", "0.0.0.0:80"), true}, {at("tcp", "192.0.2.1:80"), true}, {at("udp", "0.0.0.0:53"), true}, {at("udp", "192.0.2.1:53"), true},
		{at("udp", "192.0.2.2:53"), false}, {at("udp", "0.0.0.0:80"), false}, {at("tcp", "0.0.0.0:81"), false}, {at("tcp", "[::]:80"), false},
	} {
		undo, err := p.Claim(t.Context(), "ours222222", []nft.Mapping{test.want})
		var e *api.Error
		if taken := errors.As(err, &e) && e.Code == cni.CodeTaken; taken != test.taken || !taken && err != nil {
			t.Errorf("%s: %v", show(test.want), err)
		}
		if taken := e != nil; taken && (e.Msg != "host port not available" || !strings.Contains(e.Details, "attachment theirs2222 of another agent")) {
			t.Errorf("%s: %+v", show(test.want), e)
		}
		if undo != nil {
			undo()
		}
	}
}
