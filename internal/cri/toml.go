package cri

import (
	"errors"
	"fmt"
	"os"

	"github.com/pelletier/go-toml/v2"

	"github.com/berth-net/berth/internal/root"
)

// read reads a TOML file into v. Keys that v lacks are passed over.
func read(path string, v any) error {
	raw, err := root.ReadFile(path)
	if err != nil {
		return err
	}
	err = toml.Unmarshal(raw, v)
	var wrong *toml.DecodeError
	if errors.As(err, &wrong) {
		row, column := wrong.Position()
		return fmt.Errorf("%s, line %d, column %d: %w", path, row, column, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// exists reports whether something is at a path.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
