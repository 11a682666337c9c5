package ledger

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// A record is a value in the file:
//
//	byte  0     format, 1
//	bytes 1-4   CRC-32C, little endian, of bucket, 0, key, 0, format, JSON
//	bytes 5-    JSON
//
// The CRC covers bucket and key, so that a record under another key or in another bucket
// counts as damaged. It covers the format, so that a changed byte is not taken for a newer
// format.
const (
	recordFormat = 1
	recordHead   = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errChecksum = errors.New("checksum does not match")

// checksum returns the CRC-32C of a record with a format and, in body, its JSON.
func checksum(bucket, key string, format byte, body []byte) uint32 {
	sum := crc32.Update(0, castagnoli, []byte(bucket))
	sum = crc32.Update(sum, castagnoli, []byte{0})
	sum = crc32.Update(sum, castagnoli, []byte(key))
	sum = crc32.Update(sum, castagnoli, []byte{0, format})
	return crc32.Update(sum, castagnoli, body)
}

// appendSealed appends a record of a value's JSON, for a bucket and key, to dst.
func appendSealed(dst []byte, bucket, key string, body []byte) []byte {
	dst = append(dst, recordFormat)
	dst = binary.LittleEndian.AppendUint32(dst, checksum(bucket, key, recordFormat, body))
	return append(dst, body...)
}

// unseal checks a record and returns its JSON, a part of rec.
func unseal(bucket, key string, rec []byte) ([]byte, error) {
	if len(rec) < recordHead {
		return nil, fmt.Errorf("record of %d bytes is too short", len(rec))
	}
	if checksum(bucket, key, rec[0], rec[recordHead:]) != crcOf(rec) {
		return nil, errChecksum
	}
	if rec[0] != recordFormat {
		return nil, fmt.Errorf("record format %d: %w", rec[0], ErrNewer)
	}
	return rec[recordHead:], nil
}

// crcOf returns the CRC that a record of at least recordHead bytes carries.
func crcOf(rec []byte) uint32 { return binary.LittleEndian.Uint32(rec[1:recordHead]) }

// unsealInto checks a record and decodes its JSON into v.
func unsealInto(bucket, key string, rec []byte, v any) error {
	body, err := unseal(bucket, key, rec)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decoding record: %w", err)
	}
	return nil
}
