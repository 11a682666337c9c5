package cni

import (
	"fmt"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Keys of the list of attachments that GC is to spare. The second key is from an early print of
// the specification; libcni sends both keys.
const (
	keyValid    = "cni.dev/valid-attachments"
	keyValidOld = "cni.dev/attachments"
)

// ParseGC returns the valid attachments that a GC configuration names. The list null is
// empty: libcni sends a nil list so. No list at all is an error: otherwise a missing key
// would delete everything.
func ParseGC(raw []byte) ([]api.GCValid, *api.Error) {
	fields, err := scan.Object(raw)
	if err != nil {
		return nil, DecodeError(err)
	}
	key, value := keyValid, []byte(nil)
	for _, f := range fields {
		if f.Key == keyValid || f.Key == keyValidOld && value == nil {
			key, value = f.Key, f.Value
		}
	}
	if value == nil {
		return nil, MissingError(keyValid, "the list of attachments to keep; an empty list deletes all of the network")
	}
	valid := []api.GCValid{}
	if scan.IsNull(value) {
		return valid, nil
	}
	elements, err := scan.Array(value)
	if err != nil {
		return nil, ConfigError(key, value, "a list")
	}
	for i, element := range elements {
		entry, e := parseValid(fmt.Sprintf("%s[%d]", key, i), element)
		if e != nil {
			return nil, e
		}
		valid = append(valid, entry)
	}
	return valid, nil
}

// CheckValid checks an entry that arrives by the API.
func CheckValid(v api.GCValid) *api.Error {
	switch {
	case !isID(v.ContainerID):
		return Errorf(CodeConfig, "invalid attachment", "containerID is %s; expected %s", shown(v.ContainerID), expectID)
	case !isIfname(v.Ifname):
		return Errorf(CodeConfig, "invalid attachment", "ifname is %s; expected %s", shown(v.Ifname), expectIfname)
	}
	return nil
}

func parseValid(key string, raw []byte) (api.GCValid, *api.Error) {
	fields, err := scan.Object(raw)
	if err != nil {
		return api.GCValid{}, ConfigError(key, raw, `{"containerID": ..., "ifname": ...}`)
	}
	var v api.GCValid
	var e *api.Error
	if v.ContainerID, e = textField(fields, "containerID"); e == nil {
		if v.Ifname, e = textField(fields, "ifname"); e == nil {
			e = CheckValid(v)
		}
	}
	if e != nil {
		return api.GCValid{}, Errorf(e.Code, "invalid configuration: "+key, "%s", e.Details)
	}
	return v, nil
}
