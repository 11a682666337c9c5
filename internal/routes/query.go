package routes

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
)

// Parameters that choose attachments. A deletion cannot choose by state, which changes too
// quickly.
var (
	choosing           = []string{"network", "container", "ifname", "namespace", "pod", "uid", "address", "link"}
	deletionParameters = append(slices.Clip(choosing), "wait")
	listParameters     = append(slices.Clip(choosing), "state")
)

// filter reads the parameters that choose attachments.
func filter(q server.Query) (api.Filter, error) {
	f := api.Filter{
		Network: q["network"], Container: q["container"], Ifname: q["ifname"],
		Namespace: q["namespace"], Pod: q["pod"], UID: q["uid"],
		State: q["state"], Link: q["link"],
	}
	for _, p := range []struct {
		name, value string
		check       func(string) *api.Error
	}{
		{"network", f.Network, cni.CheckNetworkName},
		{"container", f.Container, cni.CheckContainerID},
		{"ifname", f.Ifname, cni.CheckIfname},
		{"link", f.Link, cni.CheckIfname},
		{"namespace", f.Namespace, printable(cni.MaxPodName)},
		{"pod", f.Pod, printable(cni.MaxPodName)},
		{"uid", f.UID, printable(api.MaxID)},
		{"state", f.State, checkState},
	} {
		if p.value == "" {
			continue
		}
		if e := p.check(p.value); e != nil {
			return api.Filter{}, cni.Errorf(cni.CodeEnv, "invalid query parameter "+p.name, "%s", e.Details)
		}
	}
	var err error
	if f.Address, err = address(q); err != nil {
		return api.Filter{}, err
	}
	return f, nil
}

// address reads the parameter of this name.
func address(q server.Query) (string, error) {
	a := q["address"]
	if a == "" {
		return "", nil
	}
	ip, err := netip.ParseAddr(a)
	if err != nil || ip.Zone() != "" {
		return "", server.BadParameter("address", a, "an IPv4 or IPv6 address without a prefix length")
	}
	return ip.Unmap().String(), nil
}

// deletion reads the parameters of a deletion, which has to name a container or a pod, so
// that no slip deletes a whole network.
func deletion(q server.Query) (api.Filter, error) {
	f, err := filter(q)
	if err != nil {
		return api.Filter{}, err
	}
	if f.Container == "" && (f.Namespace == "" || f.Pod == "") {
		return api.Filter{}, cni.Errorf(cni.CodeEnv, "the request does not say what to delete",
			"a deletion must name a container, or a namespace and a pod")
	}
	return f, nil
}

func checkState(s string) *api.Error {
	if slices.Contains(api.States(), s) {
		return nil
	}
	return server.BadParameter("state", s, "one of "+strings.Join(api.States(), ", "))
}

// printable returns a check for text of at most limit bytes.
func printable(limit int) func(string) *api.Error {
	return func(s string) *api.Error {
		if !cni.IsShowable(s, limit) {
			return cni.Errorf(cni.CodeEnv, "", "it is %.64q (%d bytes); expected at most %d printable characters", s, len(s), limit)
		}
		return nil
	}
}
