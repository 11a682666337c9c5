package nettest

import "testing"

// Must ends the test if one of errs is an error. Packages call it must:
//
//	var must = nettest.Must
func Must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
