package show

import (
	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
)

// networkOf is the network of a first attachment, and the label of a further one's.
func networkOf(r attachment.Record) string {
	if r.Further() {
		return r.Label()
	}
	return r.Network
}

// Attachment shows what the ledger alone says of an attachment, without its state.
func Attachment(e *attachment.Entry) api.Attachment {
	r := e.Record
	at := api.Attachment{
		ID:          string(e.Owner.ID),
		Network:     networkOf(r),
		ContainerID: r.ContainerID,
		Ifname:      r.Ifname,
		Netns:       r.Netns.Path,
		Pod:         r.Pod,
		Pool:        r.Pool,
		Mode:        r.Mode,
		Addresses:   []string{},
		Created:     r.Created,
	}
	if !e.Owner.Wanted() {
		releasing := e.Owner.Releasing // a copy: an event must not keep the whole entry
		at.Releasing = &releasing
	}
	face := e.Interface
	at.MAC, at.MTU, at.HostVeth = face.MAC, face.MTU, face.Host
	for _, ip := range face.Addresses {
		at.Addresses = append(at.Addresses, ip.String())
	}
	for _, p := range face.Ports {
		at.HostPorts = append(at.HostPorts, p.String())
	}
	if in, out := face.Ingress, face.Egress; face.Limited() {
		at.Bandwidth = &api.Bandwidth{
			IngressRate: in.Rate * 8, IngressBurst: uint64(in.Burst) * 8,
			EgressRate: out.Rate * 8, EgressBurst: uint64(out.Burst) * 8,
		}
	}
	return at
}
