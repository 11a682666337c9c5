// Package scan takes JSON apart without reflection: the fields of an object, the elements
// of an array, the text of a string. Values stay as they stand in the input. It is stricter
// than encoding/json where leniency hides mistakes: keys are unique and have one spelling,
// text is valid UTF-8, nesting is bounded.
//
// Package scan exists for the plugin, whose whole run is about as long as the first use
// of encoding/json. The agent uses package scan because it is strict.
package scan

import "fmt"

// MaxDepth is how deep objects and arrays may be nested.
const MaxDepth = 64

// Field is one key of an object.
type Field struct {
	Key   string // decoded
	Value []byte // as it stands in the input, without blanks around it
}

// Fields are an object's fields, in their order.
type Fields []Field

// Get returns a field's value; nil if it is absent or null.
func (fs Fields) Get(key string) []byte {
	for _, f := range fs {
		if f.Key == key && !IsNull(f.Value) {
			return f.Value
		}
	}
	return nil
}

// Text returns a field's string; "" if the field is absent or null.
func (fs Fields) Text(key string) (string, error) {
	value := fs.Get(key)
	if value == nil {
		return "", nil
	}
	return String(value)
}

// SyntaxError says where the input is not the JSON that was asked for.
type SyntaxError struct {
	Offset int // bytes from the beginning
	Msg    string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("at byte %d: %s", e.Offset, e.Msg) }

// Object returns the fields of the JSON object raw, in their order. It checks raw to the
// last byte. The fields' values share raw's memory.
func Object(raw []byte) (Fields, error) {
	var fields Fields
	s := &scanner{in: raw}
	err := s.document('{', "an object", func() error {
		return s.object(func(key string, value []byte) { fields = append(fields, Field{key, value}) })
	})
	if err != nil {
		return nil, err
	}
	return fields, nil
}

// Array returns the elements of the JSON array raw.
func Array(raw []byte) ([][]byte, error) {
	var elements [][]byte
	s := &scanner{in: raw}
	err := s.document('[', "an array", func() error {
		return s.array(func(value []byte) { elements = append(elements, value) })
	})
	if err != nil {
		return nil, err
	}
	return elements, nil
}

// String returns the text of the JSON string raw.
func String(raw []byte) (string, error) {
	var text string
	s := &scanner{in: raw}
	err := s.document('"', "a string", func() (err error) {
		text, err = s.text()
		return err
	})
	return text, err
}

// IsNull reports whether a field's value is the JSON null.
func IsNull(value []byte) bool { return string(value) == "null" }
