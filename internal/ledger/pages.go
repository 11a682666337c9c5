package ledger

// This file and old.go read ledgers of version 1, which were bbolt databases. Open writes
// such a ledger anew (rewrite.go).

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// A bbolt file, as go.etcd.io/bbolt v1.4 and v1.5 write it (bbolt's page.go and
// meta.go in internal/common), in the machine's byte order:
//
//	page     id u64, flags u16, count u16, overflow u32; overflow pages follow
//	leaf     elements flags u32, pos u32, ksize u32, vsize u32
//	branch   elements pos u32, ksize u32, pgid u64
//	meta     magic u32, version u32, pagesize u32, flags u32, root u64,
//	         sequence u64, freelist u64, high water u64, txid u64, FNV-1a u64
//
// pos counts from its own element. Pages 0 and 1 are metas, which are written in turn. A
// bucket is a leaf's value: root u64, sequence u64, and if root is 0 the bucket's only page.
//
// Nothing here trusts a byte of the file.
const (
	pageSize   = 4096 // bytes; also on machines with larger pages
	pageHead   = 16
	elementLen = 16
	metaLen    = 64 // including the checksum

	flagBranch = 0x01
	flagLeaf   = 0x02
	flagBucket = 0x01 // of an element of a leaf

	boltMagic   = 0xED0CDAED
	boltVersion = 2

	noFreelist = ^uint64(0)
)

var order = binary.NativeEndian

// meta has the fields of a meta page that matter here.
type meta struct {
	root     uint64 // page of the root bucket
	freelist uint64 // page of the free list, or noFreelist
	high     uint64 // high water mark: pages from here on were never used
	txid     uint64
	valid    error // why the page is not valid; nil: it is
}

// image is a bbolt file in memory, up to its high water mark.
type image struct {
	data []byte
	root uint64
	txid uint64 // of the last transaction
	seen []bool // the pages that something refers to, as far as walk has come

	buckets []string // the buckets that walk has met, in order
}

// readImage reads a file of `size` bytes. Damage is a *DamagedError.
//
// Both metas have to be valid. With one invalid meta bbolt would go back to the older one,
// and so lose a transaction whose commits were acknowledged. A crash cannot spoil a meta,
// because it fits into a disk's sector.
func readImage(f io.ReaderAt, size int64) (*image, error) {
	var metas [2]meta
	for i := range metas {
		page := make([]byte, pageHead+metaLen)
		if _, err := f.ReadAt(page, int64(i)*pageSize); err == io.EOF {
			return nil, damaged("a file of %d bytes is too short", size)
		} else if err != nil {
			return nil, fmt.Errorf("reading meta page %d: %w", i, err)
		}
		metas[i] = parseMeta(page[pageHead:])
		if err := metas[i].valid; err != nil {
			return nil, damaged("meta page %d: %w", i, err)
		}
	}
	m := metas[0]
	if metas[1].txid > m.txid {
		m = metas[1]
	}
	if m.high < 2 || m.high > uint64(size)/pageSize {
		return nil, damaged("it ends after %d bytes, but should have %d pages of %d bytes", size, m.high, pageSize)
	}
	if m.freelist != noFreelist {
		return nil, damaged("it has a free list: another program has written to it")
	}
	img := &image{data: make([]byte, m.high*pageSize), root: m.root, txid: m.txid, seen: make([]bool, m.high)}
	if _, err := f.ReadAt(img.data, 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("reading %d pages: %w", m.high, err)
	}
	img.seen[0], img.seen[1] = true, true
	return img, nil
}

func parseMeta(b []byte) meta {
	m := meta{root: order.Uint64(b[16:]), freelist: order.Uint64(b[32:]), high: order.Uint64(b[40:]), txid: order.Uint64(b[48:])}
	sum := fnv.New64a()
	sum.Write(b[:56])
	switch {
	case order.Uint32(b) != boltMagic:
		m.valid = fmt.Errorf("it is not a ledger")
	case sum.Sum64() != order.Uint64(b[56:]):
		m.valid = errChecksum
	case order.Uint32(b[4:]) != boltVersion:
		m.valid = fmt.Errorf("bbolt version %d, want %d", order.Uint32(b[4:]), boltVersion)
	case order.Uint32(b[8:]) != pageSize:
		m.valid = fmt.Errorf("pages of %d bytes, want %d", order.Uint32(b[8:]), pageSize)
	}
	return m
}

// walk yields every record of every bucket, in the order of keys. The slices
// are parts of the image.
func (img *image) walk(yield func(bucket string, key, val []byte) error) error {
	return img.tree(img.root, nil, nil, func(flags uint32, name, val []byte) error {
		if flags != flagBucket || len(val) < 16 {
			return damaged("root element %.40q is not a bucket", name)
		}
		img.buckets = append(img.buckets, string(name))
		record := func(flags uint32, key, val []byte) error {
			if flags != 0 {
				return damaged("bucket %.40q has a bucket in it", name)
			}
			return yield(string(name), key, val)
		}
		if root := order.Uint64(val); root != 0 {
			return img.tree(root, nil, nil, record)
		}
		page := val[16:]
		if len(page) < pageHead {
			return damaged("bucket %.40q breaks off", name)
		}
		if flags := order.Uint16(page[8:]); flags != flagLeaf {
			return damaged("bucket %.40q has a page of type %#x", name, flags)
		}
		return leaf(page, fmt.Sprintf("of bucket %.40q", name), nil, nil, record)
	})
}

// tree walks page id and the pages under it. The page's first key must equal `first`, and all keys
// must be below `end`; nil: any key will do.
func (img *image) tree(id uint64, first, end []byte, yield func(flags uint32, key, val []byte) error) error {
	page, err := img.page(id)
	if err != nil {
		return err
	}
	switch flags := order.Uint16(page[8:]); flags {
	case flagLeaf:
		return leaf(page, fmt.Sprint(id), first, end, yield)
	case flagBranch:
	default:
		return damaged("page %d has type %#x", id, flags)
	}
	n := int(order.Uint16(page[10:]))
	if n == 0 || pageHead+n*elementLen > len(page) {
		return damaged("page %d has %d branches", id, n)
	}
	keys := make([][]byte, n+1)
	keys[n] = end
	for i := range n {
		at := pageHead + i*elementLen
		pos, ksize := uint64(order.Uint32(page[at:])), uint64(order.Uint32(page[at+4:]))
		if ksize == 0 || uint64(at)+pos+ksize > uint64(len(page)) {
			return damaged("page %d: branch %d is outside, or has no key", id, i)
		}
		keys[i] = page[uint64(at)+pos:][:ksize:ksize]
	}
	for i := range n {
		if !inOrder(keys[i], i, keys[max(0, i-1)], first, end) {
			return damaged("page %d: branch %d is out of order", id, i)
		}
		child := order.Uint64(page[pageHead+i*elementLen+8:])
		if err := img.tree(child, keys[i], keys[i+1], yield); err != nil {
			return err
		}
	}
	return nil
}

// leaf yields the elements of a leaf page, and checks that a leaf under a branch (first is
// not nil) is not empty.
func leaf(page []byte, name string, first, end []byte, yield func(flags uint32, key, val []byte) error) error {
	n := int(order.Uint16(page[10:]))
	if pageHead+n*elementLen > len(page) {
		return damaged("page %s has %d elements", name, n)
	}
	if n == 0 && first != nil {
		return damaged("page %s is empty", name)
	}
	var last []byte
	for i := range n {
		at := pageHead + i*elementLen
		flags := order.Uint32(page[at:])
		pos, ksize, vsize := uint64(order.Uint32(page[at+4:])), uint64(order.Uint32(page[at+8:])), uint64(order.Uint32(page[at+12:]))
		if ksize == 0 || uint64(at)+pos+ksize+vsize > uint64(len(page)) {
			return damaged("page %s: element %d is outside, or has no key", name, i)
		}
		key := page[uint64(at)+pos:][:ksize:ksize]
		val := page[uint64(at)+pos+ksize:][:vsize:vsize]
		if !inOrder(key, i, last, first, end) {
			return damaged("page %s: element %d is out of order", name, i)
		}
		last = key
		if err := yield(flags, key, val); err != nil {
			return err
		}
	}
	return nil
}

// page returns a page with its overflow pages. If something else has referred to one of these pages
// before, page returns a *DamagedError.
func (img *image) page(id uint64) ([]byte, error) {
	high := uint64(len(img.seen))
	if id < 2 || id >= high {
		return nil, damaged("page %d is outside of %d", id, high)
	}
	page := img.data[id*pageSize:]
	if have := order.Uint64(page); have != id {
		return nil, damaged("page %d says that it is page %d", id, have)
	}
	overflow := uint64(order.Uint32(page[12:]))
	if id+overflow >= high {
		return nil, damaged("page %d and %d more are outside of %d", id, overflow, high)
	}
	for i := id; i <= id+overflow; i++ {
		if img.seen[i] {
			return nil, damaged("page %d is used twice", i)
		}
		img.seen[i] = true
	}
	return page[:(overflow+1)*pageSize], nil
}

// inOrder reports whether the i-th key of a page may follow last, the key before it. The
// page's first key must equal first, because bbolt finds a page again in its branch by its
// first key, and panics when it writes if the two differ.
func inOrder(key []byte, i int, last, first, end []byte) bool {
	if i == 0 && first != nil && !bytes.Equal(key, first) || i > 0 && bytes.Compare(last, key) >= 0 {
		return false
	}
	return end == nil || bytes.Compare(key, end) < 0
}
