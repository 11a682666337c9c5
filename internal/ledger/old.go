package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// oldBuckets are the buckets of a ledger of version 1, in the order of the file.
var oldBuckets = []string{bucketMeta, bucketOwners, bucketReleasing, bucketRests, bucketTombstones}

// sum counts and sums up a bucket's records. It shows when a record is lost or there twice,
// for example because of a changed byte in a page's header.
type sum struct {
	N   int    `json:"n"`
	CRC uint64 `json:"crc"` // the sum of the records' CRCs
}

// readOld reads a ledger of version 1. The records are parts of the image.
func readOld(f io.ReaderAt, size int64) (found, *image, error) {
	img, err := readImage(f, size)
	if err != nil {
		return nil, nil, err
	}
	all, counts := newFound(), map[string]int{}
	if err := img.walk(func(bucket string, key, val []byte) error {
		counts[bucket]++
		if all[bucket] != nil {
			all[bucket][string(key)] = val
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	if slices.Sort(img.buckets); !slices.Equal(img.buckets, slices.Sorted(slices.Values(oldBuckets))) {
		return nil, nil, damaged("buckets are %.200q, want %q", img.buckets, oldBuckets)
	}
	var h head
	if err := unsealInto(bucketMeta, headKey, all[bucketMeta][headKey], &h); errors.Is(err, ErrNewer) {
		return nil, nil, err
	} else if err != nil {
		return nil, nil, damaged("head: %w", err)
	}
	if h.Seq != img.txid {
		return nil, nil, damaged("head is of transaction %d, the file of %d", h.Seq, img.txid)
	}
	for _, bucket := range oldBuckets {
		have := sum{N: counts[bucket]}
		want := h.Sums[bucket]
		if bucket == bucketMeta {
			want = &sum{N: 1, CRC: uint64(crcOf(all[bucketMeta][headKey]))}
		}
		if want == nil {
			return nil, nil, damaged("head has no sum of bucket %s", bucket)
		}
		for key, rec := range all[bucket] {
			if len(rec) < recordHead {
				return nil, nil, damaged("%s %.40q: record of %d bytes is too short", bucket, key, len(rec))
			}
			have.CRC += uint64(crcOf(rec))
		}
		if have != *want {
			return nil, nil, damaged("bucket %s has %d records (sum %x), head says %d (sum %x)",
				bucket, have.N, have.CRC, want.N, want.CRC)
		}
	}
	return all, img, nil
}

// shed gives back to the disk those pages of a ledger of version 1 to which nothing refers. bbolt
// would write into these pages next, and still can. First, shed makes the other pages durable: a
// process that died may have left them in the page cache alone, and then the ledger on the disk
// refers to pages that shed gives back.
func (s *store) shed(img *image) error {
	if err := s.file.Sync(); err != nil {
		return err
	}
	size := int64(len(img.seen)) * pageSize
	if err := s.file.Truncate(size); err != nil {
		return err
	}
	s.size = size
	for from := 0; from < len(img.seen); from++ {
		to := from
		for to < len(img.seen) && !img.seen[to] {
			to++
		}
		if to > from {
			err := s.file.Punch(int64(from)*pageSize, int64(to-from)*pageSize)
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) { // then cutting off the end has to do
				break
			}
			if err != nil {
				return fmt.Errorf("giving back unused pages: %w", err)
			}
		}
		from = to
	}
	return s.file.Sync()
}

// formerPath returns where a ledger of version 1 stays when it is written anew, for people who go
// back to an earlier Berth.
func formerPath(path string) string { return path + ".v1" }

// keepFormer gives the ledger of version 1 that is open a second name (formerPath). A former ledger
// of an earlier upgrade, which is older, loses that name. If another program's file has that name,
// it stays, and no former ledger is kept. keepFormer keeps none either if the file system has no
// room for a name, or does not support a second name for a file.
func (s *store) keepFormer() error {
	former := formerPath(s.opts.Path)
	if isFormer(former) {
		if err := s.opts.volume.remove(former); err != nil {
			return err
		}
	}
	err := s.opts.volume.link(s.opts.Path, former)
	if isFull(err) || slices.ContainsFunc([]error{fs.ErrExist, unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS, unix.EMLINK}, func(no error) bool { return errors.Is(err, no) }) {
		return nil
	}
	return err
}

// dropFormer removes a former ledger, and reports whether there was one.
func (s *store) dropFormer() (bool, error) {
	former := formerPath(s.opts.Path)
	if !isFormer(former) {
		return false, nil
	}
	return true, s.opts.volume.remove(former)
}

// isFormer reports whether a file is a ledger of version 1.
func isFormer(path string) bool {
	f, err := root.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	page := make([]byte, pageHead+metaLen)
	_, err = io.ReadFull(f, page)
	return err == nil && parseMeta(page[pageHead:]).valid == nil
}
