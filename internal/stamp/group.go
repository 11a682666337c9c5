package stamp

import "fmt"

// Protocol is the origin of all of Berth's routes (RTPROT_*, as `ip route add
// ... proto 98`). The kernel gives numbers above 4 no meaning.
const Protocol = 98

// Groups are the link groups of one agent instance: 1,024 numbers that no
// other instance of the node has (below 2^31, and never 0, the default group).
type Groups uint32

// The groups of all instances are from FirstGroup to LastGroup.
const (
	FirstGroup = 1 << 30
	LastGroup  = 1<<31 - 1
)

// A group's place within its instance's 1,024.
const (
	liveGroup   = 0 // the link is whole: ADD is complete
	comingGroup = 1 // the link is half-made: ADD has not ended yet
	cutGroup    = 2 // the link is cut off, and waits for its release
	batchGroup  = 3 // the first of the groups of links that are being deleted
	groupCount  = 1024
	batchCount  = groupCount - batchGroup
)

// GroupsOf returns the groups of an instance, given its id or the first 4
// characters of it.
func GroupsOf(instance string) (Groups, error) {
	n, err := prefixNumber(instance)
	if err != nil {
		return 0, err
	}
	return Groups(FirstGroup | n<<10), nil
}

// Live is the group of whole links.
func (g Groups) Live() uint32 { return uint32(g) + liveGroup }

// Coming is the group that links are born in.
func (g Groups) Coming() uint32 { return uint32(g) + comingGroup }

// Cut is the group of links that are cut off.
func (g Groups) Cut() uint32 { return uint32(g) + cutGroup }

// Batch returns the group by which a batch of links is deleted. n numbers the batches: 1,021
// consecutive n have different groups.
func (g Groups) Batch(n uint32) uint32 { return uint32(g) + batchGroup + n%batchCount }

// Dying returns the first and the last of the groups whose links must neither send nor
// receive: the links that are cut off, and those that are being deleted.
func (g Groups) Dying() (first, last uint32) { return g.Cut(), uint32(g) + groupCount - 1 }

// Has reports whether group is one of the instance's.
func (g Groups) Has(group uint32) bool { return group >= uint32(g) && group < uint32(g)+groupCount }

// IsDying reports whether a group is in the dying range.
func (g Groups) IsDying(group uint32) bool {
	first, last := g.Dying()
	return first <= group && group <= last
}

// MetricOf returns the metric of an instance's unreachable pool routes, given the
// instance's id or the first 4 characters of it. No other instance of the node has this
// metric.
func MetricOf(instance string) (uint32, error) {
	n, err := prefixNumber(instance)
	if err != nil {
		return 0, err
	}
	return 1<<20 | n, nil
}

// Beneath returns the metric of the routes that lie beneath an instance's routes of a metric: they count while there is none of
// those to the same destination.
func Beneath(metric uint32) uint32 { return metric | beneath<<20 }

// beneath is the bit beside the 1 that a metric begins with.
const beneath = 2

// OfMetric returns the first 4 characters of the id of the instance whose metric this is;
// false if the metric is no instance's.
func OfMetric(metric uint32) (instance string, ok bool) {
	if metric>>20&^beneath != 1 {
		return "", false
	}
	b := make([]byte, PrefixLen)
	for i := PrefixLen - 1; i >= 0; i-- {
		b[i] = Letters[metric&31]
		metric >>= 5
	}
	return string(b), true
}

// prefixNumber reads the first 4 characters of an instance's id as 20 bits.
func prefixNumber(instance string) (uint32, error) {
	if len(instance) < PrefixLen {
		return 0, fmt.Errorf("instance %q: want at least %d characters", instance, PrefixLen)
	}
	var n uint32
	for i := range PrefixLen {
		v := value(instance[i])
		if v < 0 {
			return 0, fmt.Errorf("instance %q: %q is not one of a-z, 2-7", instance, instance[i])
		}
		n = n<<5 | uint32(v)
	}
	return n, nil
}
