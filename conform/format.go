package conform

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Formats are the forms in which a report can be written.
func Formats() []string { return []string{"table", "json", "junit"} }

// HasFormat reports whether name is one of Formats.
func HasFormat(name string) bool { return slices.Contains(Formats(), name) }

// Write writes a report in one of Formats. colour colours the table; other formats have no
// colours.
func (r *Report) Write(w io.Writer, format string, colour bool) error {
	switch format {
	case "table":
		return r.writeTable(w, colour)
	case "json":
		out := json.NewEncoder(w)
		out.SetEscapeHTML(false)
		out.SetIndent("", "  ")
		return out.Encode(r)
	case "junit":
		return r.writeJUnit(w)
	}
	return fmt.Errorf("there is no format %q", format)
}
