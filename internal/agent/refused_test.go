package agent

import (
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// An ADD that is refused leaves the attachment that it would have replaced.
func TestRefusedAddReleasesNothing(t *testing.T) {
	r := start(t)
	a, b, free := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	r.add(request("a", a))
	r.add(request("b", b))
	before := r.List(key("a"))[0].ID
	_, err := r.tryAdd(request("a", free, `"pool":"none"`))
	wantError(t, err, 7, "none")
	_, err = r.tryAdd(request("a", free, `"mtu":1000`))
	wantError(t, err, 7, "1280")
	_, err = r.tryAdd(request("a", b))
	wantError(t, err, 101, "belongs to")
	if left := r.List(key("a")); len(left) != 1 || left[0].ID != before || left[0].Releasing != nil {
		t.Errorf("after refused ADDs: %+v", left)
	}
}
