// Package result writes and reads ADD's results in every version of the
// specification, by the CNI library.
package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Encode returns a result as JSON in a version of the specification. Encode leaves out what
// the version cannot say: 0.1.0 and 0.2.0 have no interfaces, and one address of each
// family. Encode does not change r.
func Encode(r *types100.Result, version string) ([]byte, *api.Error) {
	from := *r
	from.CNIVersion = types100.ImplementedSpecVersion
	to, err := from.GetAsVersion(version)
	if err != nil {
		return nil, cni.Errorf(cni.CodeInternal, "converting the result", "to cniVersion %.20s: %v", version, err)
	}
	raw, err := json.Marshal(to)
	if err != nil {
		return nil, cni.Errorf(cni.CodeInternal, "encoding the result", "%v", err)
	}
	return raw, nil
}

// Parse reads a prevResult, which is in the version of the configuration that it came with,
// and converts it to the newest version. The returned result has no nil entries, and no
// address that names an interface which the result lacks.
func Parse(raw []byte, version string) (*types100.Result, *api.Error) {
	r, err := parse(raw, version)
	if err != nil {
		return nil, cni.Errorf(cni.CodeConfig, "invalid configuration: prevResult",
			"%v; expected the result of ADD in cniVersion %.20s", err, version)
	}
	return r, nil
}

func parse(raw []byte, version string) (*types100.Result, error) {
	raw, err := withVersion(raw, version)
	if err != nil {
		return nil, err
	}
	given, err := create.Create(version, raw)
	if err != nil {
		return nil, err
	}
	// The library's conversion does not check for nil.
	if err := checkNil(given); err != nil {
		return nil, err
	}
	r, err := types100.NewResultFromResult(given)
	if err != nil {
		return nil, err
	}
	for _, ip := range r.IPs {
		if i := ip.Interface; i != nil && (*i < 0 || *i >= len(r.Interfaces)) {
			return nil, fmt.Errorf("address %s names interface %d, but the result lists only %d", ip.Address.String(), *i, len(r.Interfaces))
		}
	}
	return r, nil
}

// withVersion adds the version to a result that has none, since libcni left it out before
// 1.0.0. It refuses a result with another version.
func withVersion(raw []byte, version string) ([]byte, error) {
	fields, err := scan.Object(raw)
	if err != nil {
		return nil, err
	}
	out := scan.AppendString([]byte(`{"cniVersion":`), version)
	for _, f := range fields {
		if f.Key == "cniVersion" {
			if got, err := scan.String(f.Value); err != nil || got != "" && got != version {
				return nil, fmt.Errorf("its cniVersion is %.40s", f.Value)
			}
			continue
		}
		out = scan.AppendString(append(out, ','), f.Key)
		out = append(append(out, ':'), f.Value...)
	}
	return append(out, '}'), nil
}

// checkNil refuses a null among the entries of a result.
func checkNil(r types.Result) error {
	found := false
	switch r := r.(type) {
	case *types040.Result:
		found = slices.Contains(r.Interfaces, nil) || slices.Contains(r.IPs, nil) || slices.Contains(r.Routes, nil)
	case *types100.Result:
		found = slices.Contains(r.Interfaces, nil) || slices.Contains(r.IPs, nil) || slices.Contains(r.Routes, nil)
	}
	if found {
		return errors.New("one of its lists contains null")
	}
	return nil
}
