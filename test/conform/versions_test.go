package main

import (
	"regexp"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestVersions(t *testing.T) {
	in := folders{peers: programs.Peers(t, "bridge", "multus", "flannel")}
	all, err := in.versions()
	nettest.Must(t, err)
	if len(all) != 3 || !regexp.MustCompile(`^bridge of containernetworking/plugins v\d+\.\d+\.\d+$`).MatchString(all[0]) {
		t.Errorf("the versions are %q", all)
	}
	if _, err := (folders{peers: t.TempDir()}).versions(); err == nil {
		t.Error("plugins that are not there have versions")
	}
}
