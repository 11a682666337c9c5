package sandbox

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of CRI's messages that count here, by their numbers in api.proto.
const (
	listItems = 1 // ListPodSandboxResponse.items

	sandboxID       = 1 // PodSandbox.id
	sandboxMetadata = 2 // PodSandbox.metadata
	sandboxState    = 3 // PodSandbox.state; absent: SANDBOX_READY

	metadataName      = 1 // PodSandboxMetadata.name
	metadataUID       = 2 // PodSandboxMetadata.uid
	metadataNamespace = 3 // PodSandboxMetadata.namespace
)

// ready is PodSandboxState.SANDBOX_READY.
const ready = 0

// parseList reads a ListPodSandboxResponse. A sandbox without an ID is an error: it would make a sandbox that is there look gone.
func parseList(message []byte) (all []Sandbox, err error) {
	err = fields(message, func(f protowire.Number, v value) error {
		if f != listItems {
			return nil
		}
		s, err := parseSandbox(v.bytes)
		all = append(all, s)
		return err
	})
	return all, err
}

func parseSandbox(message []byte) (s Sandbox, err error) {
	s.Ready = true
	err = fields(message, func(f protowire.Number, v value) error {
		switch f {
		case sandboxID:
			s.ID = string(v.bytes)
		case sandboxState:
			s.Ready = v.number == ready
		case sandboxMetadata:
			return s.parseMetadata(v.bytes)
		}
		return nil
	})
	if err == nil && s.ID == "" {
		err = errors.New("its answer has a sandbox without an ID")
	}
	return s, err
}

func (s *Sandbox) parseMetadata(message []byte) error {
	return fields(message, func(f protowire.Number, v value) error {
		switch f {
		case metadataName:
			s.Name = string(v.bytes)
		case metadataUID:
			s.UID = string(v.bytes)
		case metadataNamespace:
			s.Namespace = string(v.bytes)
		}
		return nil
	})
}

// value is a field's value: number of a varint, or bytes of everything that has a length.
type value struct {
	number uint64
	bytes  []byte
}

// fields calls f with each field of a message that is a varint or has a length. It skips the others: CRI's newer versions may have
// fields that are not known here.
func fields(message []byte, f func(protowire.Number, value) error) error {
	for len(message) > 0 {
		number, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return wrong(n)
		}
		message = message[n:]
		var v value
		known := true
		switch typ {
		case protowire.VarintType:
			v.number, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(message)
		default:
			known = false
			n = protowire.ConsumeFieldValue(number, typ, message)
		}
		if n < 0 {
			return wrong(n)
		}
		message = message[n:]
		if !known {
			continue
		}
		if err := f(number, v); err != nil {
			return err
		}
	}
	return nil
}

func wrong(n int) error {
	return fmt.Errorf("its answer is not what CRI v1 says: %w", protowire.ParseError(n))
}
