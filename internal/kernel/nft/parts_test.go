package nft

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/nettest"
)

// lacking has Tables act as on a kernel that lacks some expressions: the commit refuses a table as
// nf_tables does.
func lacking(t *Tables, without ...expr.Any) {
	t.commit = func(want table) error {
		if slices.ContainsFunc(without, func(e expr.Any) bool { return e == noBridges }) && want.bridge != nil {
			return fmt.Errorf("no tables of family bridge: %w", kernel.Classify(unix.EOPNOTSUPP))
		}
		for _, c := range want.chains {
			for _, r := range c.rules {
				exprs := slices.Clone(r.exprs)
				for _, e := range r.exprs {
					if d, ok := e.(*expr.Dynset); ok {
						exprs = append(exprs, d.Exprs...)
					}
				}
				for _, e := range exprs {
					for _, lack := range without {
						if reflect.TypeOf(e) == reflect.TypeOf(lack) {
							return fmt.Errorf("no %T: %w", e, kernel.Classify(unix.ENOENT))
						}
					}
				}
			}
		}
		return t.replace(want)
	}
}

// noBridges stands for what no expression is for: tables of family bridge.
var noBridges expr.Any = &expr.Counter{}

// Replace leaves out the part for which an expression is missing, and nothing else. A
// later Replace writes all parts that the kernel supports by then.
func TestLacks(t *testing.T) {
	for _, tt := range []struct {
		name    string
		without []expr.Any
		want    Parts
	}{
		{"fib", []expr.Any{&expr.Fib{}}, Sources | HostPorts},
		{"nat", []expr.Any{&expr.NAT{}}, HostPorts},
		{"writing addresses", []expr.Any{&writeAddress{}}, HostPorts},
		{"the reset of options", []expr.Any{&resetOption{}}, Multipath},
		{"connlimit", []expr.Any{&expr.Connlimit{}}, Limit},
		{"dynamic sets", []expr.Any{&expr.Dynset{}}, Limit | HostPorts},
		{"numgen", []expr.Any{&expr.Numgen{}}, Limit},
		{"tables of family bridge", []expr.Any{noBridges}, Bridges},
		{"ct", []expr.Any{&expr.Ct{}}, Invalid | Limit | HostPorts},
		{"fib and numgen", []expr.Any{&expr.Fib{}, &expr.Numgen{}}, Sources | Limit | HostPorts},
		{"all of them", []expr.Any{&expr.Fib{}, &expr.Ct{}, &expr.Dynset{}}, Sources | Invalid | Limit | HostPorts},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tables := Open(nettest.Node(t))
			r := sample()
			lacking(tables, tt.without...)
			for range 2 {
				if err := tables.Replace(r); err != nil || tables.Lacks() != tt.want {
					t.Fatalf("lacks %b, %v, want %b", tables.Lacks(), err, tt.want)
				}
				wantWhole(t, tables, r)
			}
			have, _, err := tables.read(r.Table())
			if err != nil || diff(r.table(tt.want), have) != nil {
				t.Errorf("%v: the rest differs: %v", err, diff(r.table(tt.want), have))
			}
			if _, err := Open(tables.at).Verify(r); !errors.Is(err, ErrChanged) {
				t.Errorf("who does not know of it: %v, want ErrChanged", err)
			}

			lacking(tables)
			if err := tables.Replace(r); err != nil || tables.Lacks() != 0 {
				t.Fatalf("on a kernel that has everything: lacks %b, %v", tables.Lacks(), err)
			}
			if _, err := Open(tables.at).Verify(r); err != nil {
				t.Error(err)
			}
		})
	}
}

// Before Linux 6.5, the kernel refuses to use a map as a set, as an invalid argument: Replace leaves
// the part Shadows out. Any other invalid argument is an error.
func TestLacksMapsAsSets(t *testing.T) {
	tables := Open(nettest.Node(t))
	refused := func(want table) bool {
		return slices.ContainsFunc(want.chains, func(c chain) bool { return c.name == "ports_shadows" })
	}
	tables.commit = func(want table) error {
		if refused(want) {
			return kernel.Classify(unix.EINVAL)
		}
		return tables.replace(want)
	}
	r := sample()
	if err := tables.Replace(r); err != nil || tables.Lacks() != Shadows {
		t.Fatalf("%v, lacks %b, want %b", err, tables.Lacks(), Shadows)
	}
	wantWhole(t, tables, r)
	refused = func(table) bool { return true }
	if err := tables.Replace(r); !errors.Is(err, kernel.ErrInvalid) {
		t.Errorf("of what is invalid for another reason: %v", err)
	}
}

// If the kernel lacks an expression that the table needs outside of its optional parts, Replace
// fails, and the former table stays.
func TestLacksTooMuch(t *testing.T) {
	tables := Open(nettest.Node(t))
	r := sample()
	must(t, tables.Replace(r))
	lacking(tables, &expr.Masq{})
	other := r
	other.Owner = "anotherone"
	if err := tables.Replace(other); !errors.Is(err, kernel.ErrNotFound) || tables.Lacks() != 0 {
		t.Errorf("%v, lacks %b, want not found", err, tables.Lacks())
	}
	wantWhole(t, tables, r)
	other.Masquerade = false
	if err := tables.Replace(other); err != nil || tables.Lacks() != HostPorts {
		t.Errorf("without masquerade: %v, lacks %b, want %b", err, tables.Lacks(), HostPorts)
	}
}
