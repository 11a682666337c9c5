package programs

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
)

// Refusal is the error of a plugin that has failed, by what it printed: an
// *api.Error, if that is a numbered one (CNI 1.1, section 5, "Error"). why and
// complaint, its stderr, say more of one that is not.
func Refusal(out []byte, why any, complaint string) error {
	var e api.Error
	if json.Unmarshal(out, &e) != nil || e.Code == 0 {
		return fmt.Errorf("berth-cni: %v, with no numbered error: %q %q", why, out, complaint)
	}
	return &e
}

// WantError checks an error's CNI code and a part of its text.
func WantError(t testing.TB, err error, code uint, part string) {
	t.Helper()
	e, ok := err.(*api.Error)
	if !ok || e.Code != code || !strings.Contains(e.Error(), part) {
		t.Errorf("error %v, want code %d with %q", err, code, part)
	}
}
