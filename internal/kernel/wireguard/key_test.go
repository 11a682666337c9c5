package wireguard

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// The first of many who ask for the secret at once makes it, and all get the same one, also later. Its file is root's alone.
func TestLoadSecret(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "wireguard.key")
	var all sync.WaitGroup
	secrets := make([]Secret, 20)
	for i := range secrets {
		all.Go(func() {
			s, err := LoadSecret(path)
			if err != nil {
				t.Error(err)
			}
			secrets[i] = s
		})
	}
	all.Wait()
	for _, s := range secrets {
		if s != secrets[0] || s == (Secret{}) {
			t.Fatalf("two who ask at once get two secrets, of %s and %s", s.Public(), secrets[0].Public())
		}
	}
	if again, err := LoadSecret(path); err != nil || again != secrets[0] {
		t.Errorf("later the secret is another one: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("in the folder are %v, %v", left, err)
	}
	if err := CheckKey(secrets[0].Public()); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(secrets[0]), fmt.Sprintf("%v %+v %#v %s %q", secrets[0], secrets[0], secrets[0], secrets[0], secrets[0])} {
		if strings.Contains(text, strings.TrimSpace(string(raw))) || strings.Contains(text, fmt.Sprint(secrets[0][0], " ", secrets[0][1])) || !strings.Contains(text, "a private key") {
			t.Errorf("the secret shows itself as %s", text)
		}
	}
}

// What a crash has left half made goes with the next look at the secret, and with the secret. Other files stay.
func TestRemoveSecret(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "wireguard.key")
	has := func(want string) {
		t.Helper()
		files, err := os.ReadDir(dir)
		var names []string
		for _, f := range files {
			names = append(names, f.Name())
		}
		if have := strings.Join(names, " "); err != nil || have != want {
			t.Errorf("in the folder are %q, want %q: %v", have, want, err)
		}
	}
	leave := func() {
		for _, name := range []string{"wireguard.key.new-1", "wireguard.key.new-22", "wireguard.keys"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		if _, err := LoadSecret(path); err != nil {
			t.Fatal(err)
		}
		leave()
	}
	if _, err := LoadSecret(path); err != nil {
		t.Fatal(err)
	}
	has("wireguard.key wireguard.keys")
	leave()
	for range 2 {
		if err := RemoveSecret(path); err != nil {
			t.Error(err)
		}
		has("wireguard.keys")
	}
	if err := RemoveSecret(filepath.Join(dir, "away", "key")); err != nil {
		t.Error(err)
	}
}

// A file without a secret stays as it is, and no error shows what it has.
func TestLoadSecretRefuses(t *testing.T) {
	for _, text := range []string{"", "hush", strings.Repeat("A", 43) + "=", "AAAA\n", strings.Repeat("x", 5000)} {
		path := filepath.Join(t.TempDir(), "wireguard.key")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadSecret(path)
		if err == nil || !strings.Contains(err.Error(), path) || len(text) > 3 && strings.Contains(err.Error(), text) {
			t.Errorf("%.60q: %v", text, err)
		}
		if raw, err := os.ReadFile(path); err != nil || string(raw) != text {
			t.Errorf("%.60q: the file is changed", text)
		}
	}
	if _, err := LoadSecret(filepath.Join(t.TempDir(), "away", "key")); err == nil {
		t.Error("a secret that is written nowhere is used")
	}
}

func TestCheckKey(t *testing.T) {
	good := Secret{1, 2, 3}.Public()
	for _, bad := range []string{"", "x", good[:43], good + "\n", " " + good, strings.Repeat("A", 43) + "=", good[:42] + "B="} {
		if CheckKey(bad) == nil && bad != good {
			t.Errorf("%q counts as a key", bad)
		}
	}
	if err := CheckKey(good); err != nil {
		t.Error(err)
	}
}
