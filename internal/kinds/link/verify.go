package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/stamp"
)

// view has what a look has seen of the host's side of some links.
type view struct {
	links      map[string]*rtnl.Link // by the names that ADD gave them
	routes     map[place]bool
	neighbours map[place]string   // MACs
	shapes     map[int]rtnl.Qdisc // by the links' indices; only of links whose specs have an Ingress
	policed    map[int]rtnl.Rate  // by the links' indices; only of links whose specs have an Egress
}

// place is an address behind a link.
type place struct {
	addr  netip.Addr
	index int
}

func nothing() view {
	return view{map[string]*rtnl.Link{}, map[place]bool{}, map[place]string{}, map[int]rtnl.Qdisc{}, map[int]rtnl.Rate{}}
}

// looks is how many links verify looks up at the same time. verify looks for a link that does not have
// its name in the link's pod, too. The pod's path may hang, and the other look-ups should not wait for
// that.
const looks = 16

// verify compares the host's side of links with their specs. It looks a single link up;
// for several it lists all links of the node once.
func (l *Links) verify(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	seen, whole := nothing(), false // whole: seen is complete, so that a link that is not in seen does not exist
	if len(hs) > 1 {
		var err error
		if seen, whole, err = l.lookAtAll(ctx, look, hs); err != nil && !errors.Is(err, kernel.ErrInterrupted) {
			for i := range errs {
				errs[i] = fmt.Errorf("looking at links: %w", err)
			}
			return errs
		}
	}
	var closer sync.WaitGroup
	places := make(chan struct{}, looks)
	for i, h := range hs {
		s, err := l.spec(h)
		if err == nil {
			err = l.compare(s, seen)
			if err != nil && !whole { // the view may only lack what seems to differ
				places <- struct{}{}
				closer.Go(func() {
					errs[i] = l.verifyOne(s)
					<-places
				})
				continue
			}
		}
		errs[i] = err
	}
	closer.Wait()
	return errs
}

func (l *Links) verifyOne(s *Spec) error {
	seen, err := l.look(s)
	if err != nil {
		return fmt.Errorf("looking at link %s: %w", s.Name, err)
	}
	return l.compare(s, seen)
}

// compare returns nil if a link is as its spec says, hold.ErrGone if the view lacks the link, or else
// an error with all that differs.
func (l *Links) compare(s *Spec, seen view) error {
	link, ok := seen.links[s.Name]
	if !ok {
		return fmt.Errorf("link %s: %w", s.Name, hold.ErrGone)
	}
	var d []string
	differ := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if link.Name != s.Name {
		differ("renamed to %s", link.Name)
	}
	switch {
	case link.Group == l.groups.Live():
	case link.Group == l.groups.Coming():
		differ("half-made (group %d)", link.Group)
	case l.groups.IsDying(link.Group):
		differ("cut off (group %d)", link.Group)
	default:
		differ("group %d, not %d", link.Group, l.groups.Live())
	}
	if !stamp.Alike(link.Alias, s.Alias) {
		differ("alias %q, not %q", link.Alias, s.Alias)
	}
	if link.MAC != s.HostMAC {
		differ("address %s, not %s", link.MAC, s.HostMAC)
	}
	if link.MTU != s.mtu() {
		differ("mtu %d, not %d", link.MTU, s.mtu())
	}
	if link.Master != 0 {
		differ("attached to link %d as its master", link.Master)
	}
	if !link.Up {
		differ("down")
	}
	for _, x := range s.sysctls(link.Conf, l.forwards()) {
		if x.said && x.have != x.want {
			differ("%s %d, not %d", x.name, x.have, x.want)
		}
	}
	if have := seen.shapes[link.Index]; s.Ingress != (rtnl.Rate{}) && have.Shape != s.Ingress {
		differ("sends with %s, not %s", have, s.Ingress)
	}
	if have := seen.policed[link.Index]; have != s.Egress && s.Egress != (rtnl.Rate{}) && l.policer.Polices() {
		differ("lets in %s, not %s", shaping.LetsIn(have), s.Egress)
	}
	for _, a := range s.Addresses {
		at := place{a, link.Index}
		if !seen.routes[at] {
			differ("no route to %s", a)
		}
		switch mac := seen.neighbours[at]; mac {
		case s.MAC:
		case "":
			differ("no neighbour %s", a)
		default:
			differ("neighbour %s at %s, not %s", a, mac, s.MAC)
		}
	}
	err := changed("link "+s.Name, d)
	if link.Group == l.groups.Coming() {
		err = kernel.As(hold.ErrHalfMade, err)
	}
	return err
}

// changed returns an error that lists differences; nil if there are none.
func changed(what string, differences []string) error {
	if len(differences) == 0 {
		return nil
	}
	return &hold.ChangedError{What: what, Differences: differences}
}

// look looks up one link, and the routes and neighbours for its addresses, in constant
// time.
func (l *Links) look(s *Spec) (view, error) {
	seen := nothing()
	var link rtnl.Link
	routes := make([]rtnl.Route, len(s.Addresses))
	rs := []rtnl.Request{rtnl.GetLink(s.Name, &link)}
	for i, a := range s.Addresses {
		rs = append(rs, rtnl.MatchRoute(a, &routes[i]))
	}
	err := l.conn.Each(rs...)[0]
	if err == nil && !l.owns(s, link) || errors.Is(err, kernel.ErrNotFound) {
		link, err = l.elsewhere(s)
	}
	if errors.Is(err, kernel.ErrNotFound) {
		return seen, nil
	}
	if err != nil {
		return seen, err
	}
	seen.links[s.Name] = &link

	if s.Ingress != (rtnl.Rate{}) {
		var q rtnl.Qdisc
		if err := l.conn.GetQdisc(link.Index, &q); err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return seen, err
		}
		seen.shapes[link.Index] = q
	}
	if s.Egress != (rtnl.Rate{}) {
		if seen.policed, err = l.conn.Policed(link.Index); err != nil {
			return seen, err
		}
	}
	neighbours := make([]rtnl.Neighbour, len(s.Addresses))
	rs = rs[:0]
	for i, a := range s.Addresses {
		seen.routes[place{a, link.Index}] = routes[i] == withMetric(hostRoute(a, link.Index), routes[i].Metric)
		rs = append(rs, rtnl.GetNeighbour(a, link.Index, &neighbours[i]))
	}
	for i, err := range l.conn.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return seen, err
		}
		seen.neighbours[place{s.Addresses[i], link.Index}] = neighbours[i].MAC
	}
	return seen, l.lookAgain(s, seen, link.Index)
}

// lookAgain lists a link's routes if a route seems to be missing: a policy rule may have made the
// look-up use another table than main.
func (l *Links) lookAgain(s *Spec, seen view, index int) error {
	for _, a := range s.Addresses {
		if seen.routes[place{a, index}] {
			continue
		}
		routes, err := l.conn.Routes(rtnl.RouteFilter{Index: index})
		if err != nil && !errors.Is(err, kernel.ErrNotFound) && !errors.Is(err, kernel.ErrInterrupted) {
			return err
		}
		seen.addRoutes(routes)
		return nil
	}
	return nil
}

// lookAtAll lists all links of the instance, all of Berth's routes, all permanent neighbours, and
// the limits of the holds' links. whole reports whether the view is complete. With an error of
// class kernel.ErrInterrupted lookAtAll returns what it saw: something may be missing.
//
// If find has listed the links in the same look, lookAtAll uses that list and lists no links again. The
// list may be out of date, so whole is false then.
func (l *Links) lookAtAll(ctx context.Context, look *hold.Look, hs []hold.Hold) (seen view, whole bool, err error) {
	links, found := look.Remembered(l).([]rtnl.Link)
	if !found {
		links, err = l.list(ctx, look)
		whole = err == nil && !look.IsGlance()
	}
	if err != nil && !errors.Is(err, kernel.ErrInterrupted) {
		return seen, false, err
	}
	seen = view{l.byName(links), make(map[place]bool, 2*len(links)), make(map[place]string, 2*len(links)), map[int]rtnl.Qdisc{}, nil}
	routes, errRoutes := l.conn.Routes(rtnl.RouteFilter{})
	seen.addRoutes(routes)
	if errRoutes != nil && !errors.Is(errRoutes, kernel.ErrInterrupted) {
		return seen, false, errRoutes
	}
	neighbours, errNeighbours := l.conn.Neighbours()
	for _, n := range neighbours {
		seen.neighbours[place{n.Addr, n.Index}] = n.MAC
	}
	if errNeighbours != nil && !errors.Is(errNeighbours, kernel.ErrInterrupted) {
		return seen, false, errNeighbours
	}
	err = errors.Join(err, errRoutes, errNeighbours)
	if slices.ContainsFunc(hs, isShaped) {
		shapes, errShapes := l.conn.Shaped()
		for _, q := range shapes {
			seen.shapes[q.Index] = q
		}
		if err = errors.Join(err, errShapes); errShapes != nil && !errors.Is(errShapes, kernel.ErrInterrupted) {
			return seen, false, err
		}
	}
	var unknown error
	if seen.policed, unknown = l.conn.Policed(seen.limited(hs)...); unknown != nil {
		return seen, false, unknown
	}
	return seen, whole && err == nil, err
}

// addRoutes adds those routes to the view that lead to a single address on a link.
func (v view) addRoutes(routes []rtnl.Route) {
	for _, r := range routes {
		if r == withMetric(hostRoute(r.Dst.Addr(), r.Index), r.Metric) {
			v.routes[place{r.Dst.Addr(), r.Index}] = true
		}
	}
}

// withMetric returns r with the metric that the kernel gave it.
func withMetric(r rtnl.Route, metric uint32) rtnl.Route {
	r.Metric = metric
	return r
}
