package conform

import "slices"

// Formats are the forms in which a report can be written.
func Formats() []string { return []string{"table", "json", "junit"} }

// HasFormat reports whether a report can be written so.
func HasFormat(name string) bool { return slices.Contains(Formats(), name) }
