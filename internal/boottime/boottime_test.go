package boottime_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/nettest"
)

// Now agrees with /proc/uptime, which is CLOCK_BOOTTIME in seconds with two decimals.
func TestNow(t *testing.T) {
	before := boottime.Now()
	raw, err := os.ReadFile("/proc/uptime")
	nettest.Must(t, err)
	after := boottime.Now()
	seconds, err := strconv.ParseFloat(strings.Fields(string(raw))[0], 64)
	nettest.Must(t, err)
	const coarse = int64(10 * time.Millisecond) // the resolution of /proc/uptime
	if up := int64(seconds * 1e9); up < before-2*coarse || up > after+coarse {
		t.Errorf("the machine is up for %d ns, the clock says %d to %d", up, before, after)
	}
	if d := time.Duration(boottime.At(time.Now().Add(time.Hour)) - after); d < time.Hour-time.Second || d > time.Hour+time.Minute {
		t.Errorf("in an hour is in %v", d)
	}
}
