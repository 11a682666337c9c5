package nft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// Watch hears of every transaction that touches one table, also of our own.
type Watch struct {
	tables  *Tables
	name    string
	c       *netlink.Conn
	touched bool // by the transaction whose generation is not known yet
	gone    bool // after it
	others  bool // it was not one of tables
}

// News is that transactions touched the table.
type News struct {
	Made   Generation // by the last of them
	Gone   bool       // it took the table away; false: the table may be as it was
	Others bool       // not all of them were of the Tables that watches, for what is known
}

// What a watch can be behind before it misses something: busy nodes change
// thousands of rules at once.
const receiveBuffer = 4 << 20

// Watch begins to watch the instance's table: nothing that is done from now on
// escapes it. The caller closes it.
//
//	nft monitor
func (t *Tables) Watch(instance string) (*Watch, error) {
	c, err := t.openReader()
	if err != nil {
		return nil, fmt.Errorf("watching nftables: %w", err)
	}
	// A smaller buffer than asked for is none the worse: see Next.
	_ = c.SetReadBuffer(receiveBuffer)
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		c.Close()
		return nil, fmt.Errorf("watching nftables: %w", kernel.Classify(err))
	}
	t.conns.watch()
	return &Watch{tables: t, name: stamp.Table(instance), c: c}, nil
}

// Next waits for a transaction that touches the table, and tells of the last of
// those that it has heard of. If the socket could not hold all that happened
// (ENOBUFS), the table counts as touched by others, in the current generation. When ctx
// ends it returns ctx.Err(), and goes on later if it is called again.
func (w *Watch) Next(ctx context.Context) (News, error) {
	if err := w.c.SetReadDeadline(time.Time{}); err != nil {
		return News{}, fmt.Errorf("watching nftables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = w.c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		if err := ctx.Err(); err != nil {
			return News{}, err
		}
		messages, err := w.c.Receive()
		switch {
		case ctx.Err() != nil:
			return News{}, ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			w.touched, w.gone, w.others = false, false, false
			now, err := w.current()
			return News{Made: now, Others: true}, err
		case err != nil:
			return News{}, fmt.Errorf("watching nftables: %w", kernel.Classify(err))
		}
		var last News
		for _, m := range messages {
			// A transaction's news end with its generation.
			if g, ok := generationOf(m); ok {
				if w.touched {
					last = News{g, w.gone, last.Others || w.others}
				}
				w.touched, w.gone, w.others = false, false, false
			} else if w.about(m) {
				w.touched = true
				w.others = w.others || !w.tables.conns.own(m.Header.PID)
				switch m.Header.Type {
				case messageType(unix.NFT_MSG_DELTABLE):
					w.gone = true
				case messageType(unix.NFT_MSG_NEWTABLE):
					w.gone = false
				}
			}
		}
		if last.Made != 0 {
			return last, nil
		}
	}
}

// about reports whether a message is about the table: in all sorts of nftables
// messages attribute 1 is the table's name.
func (w *Watch) about(m netlink.Message) bool {
	attrs, err := attributes(m)
	return err == nil && m.Data[0] == unix.NFPROTO_INET && text(attrs[unix.NFTA_TABLE_NAME]) == w.name
}

// current reads the generation now, on a socket of its own.
func (w *Watch) current() (Generation, error) {
	c, err := w.tables.openReader()
	if err != nil {
		return 0, fmt.Errorf("reading the nftables generation: %w", err)
	}
	defer c.Close()
	g, err := generation(c)
	if err != nil {
		return 0, fmt.Errorf("reading the nftables generation: %w", kernel.Classify(err))
	}
	return g, nil
}

// Close ends the watch.
func (w *Watch) Close() error {
	w.tables.conns.unwatch()
	return w.c.Close()
}
