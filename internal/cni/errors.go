package cni

import (
	"fmt"
	"unicode/utf8"

	"github.com/berth-net/berth/api"
)

// Codes of errors. Below 100 they are the specification's (CNI 1.1, section 5,
// "Error"; 999 is libcni's), from 100 Berth's own.
const (
	CodeVersion      = 1   // cniVersion is not supported, or has no such verb
	CodeField        = 2   // a key of the configuration is not supported
	CodeUnknown      = 3   // no such container; nothing needs to be cleaned up
	CodeEnv          = 4   // an environment variable is missing or malformed
	CodeIO           = 5   // reading or writing failed
	CodeDecode       = 6   // the configuration is not JSON
	CodeConfig       = 7   // the configuration is JSON, but wrong
	CodeTryAgain     = 11  // something transient: the same request may succeed later
	CodeNotAvailable = 50  // STATUS: no ADD can be served
	CodeLimited      = 51  // STATUS: existing pods may not be connected either
	CodeExhausted    = 100 // a pool has no free address
	CodeTaken        = 101 // a requested address, interface name or host port is another's, or masquerade's
	CodeNetns        = 102 // the network namespace is gone, or cannot be a pod's
	CodeCheck        = 103 // CHECK: the attachment is not as its result says
	CodeInternal     = 999 // Berth's own fault
)

// MsgReachable is the message for a DEL that is promised, but whose pod is not cut off yet.
const MsgReachable = "the agent could not cut a pod off from the network"

// MsgUnsure is the message of a DEL that may be older or younger than its pod's ADD: the DEL's
// process began before that ADD, and became the plugin after it.
const MsgUnsure = "this DEL may be older or newer than the pod's ADD"

// maxShown is how many bytes of a given value an error shows at most.
const maxShown = 64

// shown makes given text fit for a message: quoted, and cut if it is long.
func shown[T string | []byte](given T) string {
	if len(given) <= maxShown {
		return fmt.Sprintf("%q", given)
	}
	end := maxShown
	for end > maxShown-utf8.UTFMax && !utf8.RuneStart(given[end]) {
		end--
	}
	return fmt.Sprintf("%q... (%d bytes)", given[:end], len(given))
}

// shownJSON is shown for a JSON value, which has quotes of its own.
func shownJSON(value []byte) string {
	if len(value) <= maxShown {
		return string(value)
	}
	end := maxShown
	for end > maxShown-utf8.UTFMax && !utf8.RuneStart(value[end]) {
		end--
	}
	return fmt.Sprintf("%s... (%d bytes)", value[:end], len(value))
}

// Errorf makes an error with a code. The format is for the details: what was given, what is
// expected, what to do.
func Errorf(code uint, msg, details string, args ...any) *api.Error {
	return &api.Error{Code: code, Msg: msg, Details: fmt.Sprintf(details, args...)}
}

// versionError answers a cniVersion that Berth does not speak.
func versionError(given string) *api.Error {
	return Errorf(CodeVersion, "cniVersion is not supported",
		"the configuration has cniVersion %s; supported are %s", shown(given), versionList())
}

// verbError answers a verb that is younger than the configuration's version.
func verbError(verb, given, since string) *api.Error {
	return Errorf(CodeVersion, "cniVersion has no "+verb,
		"the configuration has cniVersion %s; %s needs %s or later", shown(given), verb, since)
}

// FieldError answers a key of the configuration that is not supported. The specification
// wants the error to contain key and value.
func FieldError(key string, value []byte, hint string) *api.Error {
	return Errorf(CodeField, "unsupported key in the configuration", "%s: %s; %s", shown(key), shownJSON(value), hint)
}

// EnvError answers a malformed environment variable.
func EnvError(name, given, expected string) *api.Error {
	return Errorf(CodeEnv, "invalid environment variable "+name, "%s is %s; expected %s", name, shown(given), expected)
}

// DecodeError answers a configuration that is not a JSON object.
func DecodeError(err error) *api.Error {
	return Errorf(CodeDecode, "the configuration is not a JSON object", "%v", err)
}

// invalidConf is the message of an error whose details say which key is wrong.
const invalidConf = "invalid configuration"

// ConfigError answers a key whose value is wrong.
func ConfigError(key string, value []byte, expected string) *api.Error {
	return Errorf(CodeConfig, invalidConf, "%s is %s; expected %s", key, shownJSON(value), expected)
}

// MissingError answers a key that is not there.
func MissingError(key, expected string) *api.Error {
	return Errorf(CodeConfig, invalidConf, "%s is missing; expected %s", key, expected)
}
