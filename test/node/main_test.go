// Package node tests a node's life with the real programs, berthd and
// berth-cni: reboots, neighbours, bad disks, flushed tables, changed
// configurations, kills.
package node

import (
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

var must = nettest.Must
