package daemon

import "github.com/berth-net/berth/internal/nettest"

var must = nettest.Must
