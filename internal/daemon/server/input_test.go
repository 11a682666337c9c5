package server

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
)

// TestRefusedInput has requests that must not reach a Call, with the answer to each.
func TestRefusedInput(t *testing.T) {
	d := startToy(t)
	d.hook = func(context.Context, string, When) error { panic("it was executed") }
	d.Open()
	for _, test := range []struct {
		method, target, body string
		status               int
		code                 uint
		want                 string
	}{
		{"GET", "/v2/toys", "", 404, 4, "look elsewhere"},
		{"PUT", pathToys, aToy, 405, 4, "has GET, POST"},
		{"GET", pathToys, "{}", 400, 6, "takes no body"},
		{"GET", pathToys + "?bogus=1", "", 400, 4, "this request takes no parameters"},
		{"GET", pathNews + "?bogus=1", "", 400, 4, "this request takes no parameters"},
		{"DELETE", pathToys + "/bear?bogus=1", "", 400, 4, "expected wait"},
		{"DELETE", pathToys + "/bear?wait=%zz", "", 400, 4, "invalid query"},
		{"DELETE", pathToys + "/bear?wait=true&wait=true", "", 400, 4, "it appears 2 times"},
		{"DELETE", pathToys + "/bear?wait=", "", 400, 4, "it is empty"},
		{"DELETE", pathToys + "/bear?wait=yes", "", 400, 4, "true or false"},
		{"POST", pathToys, "", 400, 6, "expected an object"},
		{"POST", pathToys, aToy + "{}", 400, 6, "nothing more after"},
		{"POST", pathToys, `{"name":"bear","bogus":1}`, 400, 6, `unknown field "bogus"`},
		{"POST", pathToys, `{"name":"bear","name":"wolf"}`, 400, 6, "appears twice"},
		{"POST", pathToys, `{"name":5}`, 400, 6, `"Name" is a number; expected a string`},
		{"POST", pathToys, `{}`, 400, 7, `lacks "name"`},
		{"POST", pathToys, aToy + strings.Repeat(" ", api.MaxBody), 413, 6, "1048576 bytes"},
	} {
		t.Run(fmt.Sprintf("%s %.60s %.40s", test.method, test.target, test.body), func(t *testing.T) {
			a := d.ask(t.Context(), test.method, test.target, test.body, nil)
			wantCode(t, a.err, test.code, test.want)
			if got := a.header.Get("Content-Type"); a.status != test.status || got != "application/json" {
				t.Errorf("status %d, content type %q; want %d", a.status, got, test.status)
			}
		})
	}
}
