package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/berth-net/berth/internal/root"
)

// Secret is a node's private key. Nothing prints it: its text says only that it is one.
type Secret [wgtypes.KeyLen]byte

func (Secret) String() string { return "a private key" }

// GoString is String, for %#v.
func (Secret) GoString() string { return "a private key" }

// Public returns the public key that belongs to the secret, in base64, as `wg` shows it.
func (s Secret) Public() string { return wgtypes.Key(s).PublicKey().String() }

// CheckKey returns an error if a text is no public key in base64.
func CheckKey(text string) error {
	key, err := wgtypes.ParseKey(text)
	switch {
	case err != nil || key.String() != text: // and no second way to write the same key
		return fmt.Errorf("%.60q is no WireGuard key: want 32 bytes in base64", text)
	case key == wgtypes.Key{}:
		return errors.New("a WireGuard key of zeros cannot be")
	}
	return nil
}

// LoadSecret reads the secret of a file. If there is no file, LoadSecret makes a secret and writes the file, for root alone and
// durably: nobody gets to know a secret that a crash could take back. A file that is there and has no secret in it is an error,
// and stays as it is. What a crash has left beside the file of a secret half made goes.
func LoadSecret(path string) (Secret, error) {
	raw, err := root.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeSecret(path)
	}
	if err != nil {
		return Secret{}, fmt.Errorf("reading the private key of this node: %w", err)
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(raw)))
	if err != nil || key == (wgtypes.Key{}) { // the error would show the text
		return Secret{}, fmt.Errorf("%s has no private key in it: remove the file, and the agent makes another key", path)
	}
	_ = removeHalfMade(path) // the secret is none the worse for it
	return Secret(key), nil
}

// RemoveSecret removes the file of a secret, and what a crash has left beside it.
func RemoveSecret(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the private key of this node: %w", err)
	}
	return removeHalfMade(path)
}

// halfMade is what the name of a file begins with that is to become the file of a secret.
func halfMade(path string) string { return filepath.Base(path) + ".new-" }

func removeHalfMade(path string) error {
	dir := filepath.Dir(path)
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), halfMade(path)) {
			continue
		}
		if failed := os.Remove(filepath.Join(dir, f.Name())); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return fmt.Errorf("removing a private key that was half made: %w", err)
	}
	return nil
}

// makeSecret makes a secret, and returns the one that the file has in the end: another process may be faster.
func makeSecret(path string) (s Secret, err error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return s, fmt.Errorf("making a private key: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), halfMade(path)+"*") // with mode 0600
	if err != nil {
		return s, fmt.Errorf("writing the private key of this node: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(key.String() + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Link(f.Name(), path)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // the other process has also removed what is half made
		return LoadSecret(path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return s, fmt.Errorf("writing the private key of this node: %w", err)
	}
	return Secret(key), nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
