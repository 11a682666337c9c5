package packages

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/test/programs"
)

// released returns the folder of what `make packages` has made of a version.
func released(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(programs.Tree(t), "bin", "packages", "0.0.1")
	if _, err := os.Stat(filepath.Join(dir, "SHA256SUMS")); err != nil {
		programs.Missing(t, "checksums are missing: run `make packages`")
	}
	return dir
}

// Each program has an SBOM, which names the version, Go, and what the program links.
func TestSBOM(t *testing.T) {
	dir := released(t)
	for _, program := range []string{"berth", "berthd", "berth-cni", "berth-operator", "berth-runner", "cni-conform"} {
		raw, err := os.ReadFile(filepath.Join(dir, program+"-0.0.1.cdx.json"))
		must(t, err)
		type component struct {
			Name, Version, PURL string
			Hashes              []struct{ Alg, Content string }
		}
		var bom struct {
			Format   string `json:"bomFormat"`
			Metadata struct{ Component component }
			All      []component `json:"components"`
		}
		must(t, json.Unmarshal(raw, &bom))
		if bom.Format != "CycloneDX" || bom.Metadata.Component.Version != "v0.0.1" {
			t.Errorf("%s: the SBOM is of the format %q and of version %q", program, bom.Format, bom.Metadata.Component.Version)
		}
		linked := map[string]string{}
		for _, c := range bom.All {
			linked[c.Name] = c.Version
			if c.Name != "std" && !strings.HasPrefix(c.PURL, "pkg:golang/"+c.Name+"@"+c.Version) {
				t.Errorf("%s: %s %s has the package URL %q", program, c.Name, c.Version, c.PURL)
			}
		}
		for _, name := range []string{"std", "golang.org/x/sys"} {
			if linked[name] == "" {
				t.Errorf("%s: the SBOM does not name %s: %v", program, name, linked)
			}
		}
		if _, links := linked["github.com/spf13/cobra"]; links != (program != "berth-cni") {
			t.Errorf("%s: the SBOM has cobra: %v", program, links)
		}
		if program == "cni-conform" && len(linked) > 15 {
			t.Errorf("the suite brings more along than it needs: %v", linked)
		}
	}
}

// SHA256SUMS has the checksum of every file that is released, as `sha256sum -c` reads it.
func TestChecksums(t *testing.T) {
	dir := released(t)
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	must(t, err)
	var listed []string
	for lines := bufio.NewScanner(bytes.NewReader(sums)); lines.Scan(); {
		sum, name, _ := strings.Cut(lines.Text(), "  ")
		raw, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		if is := fmt.Sprintf("%x", sha256.Sum256(raw)); is != sum {
			t.Errorf("%s has the checksum %s, and SHA256SUMS says %s", name, is, sum)
		}
		listed = append(listed, name)
	}
	var there []string
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if e.Name() != "SHA256SUMS" {
			there = append(there, e.Name())
		}
	}
	slices.Sort(listed)
	if !slices.Equal(listed, there) || len(there) != 12 { // Berth's deb and rpm; image, archive and SBOMs of Berth's programs and of cni-conform
		t.Errorf("SHA256SUMS lists\n%q, and there are\n%q", listed, there)
	}
}
