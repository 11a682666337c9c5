package cni

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-net/berth/api"
)

const (
	maxIfname = 15   // bytes: IFNAMSIZ without its NUL
	maxPath   = 4095 // bytes: PATH_MAX without its NUL
)

// In messages, these texts say what the checks below expect.
const (
	expectID     = "1 to 128 letters, digits, '_', '.' or '-', beginning with a letter or a digit"
	expectIfname = "1 to 15 bytes without '/', ':', '%', blanks or control characters, and not '.', '..', 'lo', 'all' or 'default'"
	expectPath   = "an absolute path of at most 4095 bytes of UTF-8"
)

// CheckContainerID checks CNI_CONTAINERID (CNI 1.1, section 2, "Parameters").
func CheckContainerID(id string) *api.Error {
	if !isID(id) {
		return EnvError("CNI_CONTAINERID", id, expectID)
	}
	return nil
}

// CheckIfname checks CNI_IFNAME, the interface's name in the pod.
func CheckIfname(name string) *api.Error {
	if !isIfname(name) {
		return EnvError("CNI_IFNAME", name, expectIfname)
	}
	return nil
}

// CheckNewIfname is CheckIfname for ADD: it also refuses a name that the kernel would
// refuse only after ADD has taken everything else. DEL accepts such a name: to delete what
// cannot exist is no error.
func CheckNewIfname(name string) *api.Error {
	if strings.IndexByte(name, nbsp) >= 0 {
		return EnvError("CNI_IFNAME", name, "a name without the byte a0, which the kernel takes for a blank")
	}
	return CheckIfname(name)
}

// CheckIfnameKey is CheckNewIfname for a name that a key asks for.
func CheckIfnameKey(key, name string) *api.Error {
	if e := CheckNewIfname(name); e != nil {
		return Errorf(CodeConfig, invalidConf, "%s is %s; expected %s", key, shown(name), expectIfname)
	}
	return nil
}

// nbsp is Latin-1's no-break space. The kernel's dev_valid_name refuses this byte like
// other blanks, even as a part of a UTF-8 character such as "à".
const nbsp = 0xa0

// CheckNetnsPath checks the form of CNI_NETNS, not what is at that path.
func CheckNetnsPath(path string) *api.Error {
	if !isPath(path) {
		return EnvError("CNI_NETNS", path, expectPath+", of the pod's network namespace")
	}
	return nil
}

// CheckNetworkName checks a network's name, which the configuration has.
func CheckNetworkName(name string) *api.Error {
	if !isID(name) {
		return Errorf(CodeConfig, invalidConf, "name is %s; expected %s", shown(name), expectID)
	}
	return nil
}

// isID reports whether s matches [a-zA-Z0-9][a-zA-Z0-9_.-]* and has at most api.MaxID
// bytes, a bound that the specification lacks.
func isID(s string) bool {
	if s == "" || len(s) > api.MaxID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return true
}

// isIfname reports whether s can be an interface's name. isIfname refuses more than the
// specification does: the kernel takes '%' for a template, the kernel refuses addresses on devices
// called all or default, which are sysctl folders, and every namespace already has its
// loopback device, lo.
func isIfname(s string) bool {
	if s == "" || len(s) > maxIfname || !utf8.ValidString(s) {
		return false
	}
	switch s {
	case ".", "..", "lo", "all", "default":
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == ':' || r == '%' || unicode.IsSpace(r) || unicode.IsControl(r)
	})
}

// isPath reports whether s is an absolute path that JSON can carry.
func isPath(s string) bool {
	return strings.HasPrefix(s, "/") && len(s) <= maxPath && strings.IndexByte(s, 0) < 0 && utf8.ValidString(s)
}

// IsShowable reports whether s is text of at most limit bytes that can be shown to people
// as it is.
func IsShowable(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) })
}
