package nft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/stamp"
)

// Watch hears of every transaction that touches one table or the one of family bridge beside it, also of transactions that the
// watching Tables made.
type Watch struct {
	tables *Tables
	name   string
	c      *netlink.Conn

	// About the transaction whose news Next is reading, before Next knows its generation:
	touched bool // the transaction touched the table
	gone    bool // the table is gone after the transaction
	others  bool // a socket that is not one of tables' sockets made the transaction
}

// News says that one or more transactions touched the table.
type News struct {
	Made   Generation // the generation that the last of these transactions made
	Gone   bool       // the last of these transactions deleted the table of family inet; false: the tables may even be unchanged
	Others bool       // others than the watching Tables made some of these transactions, or may have
}

// receiveBuffer is how many bytes of news the kernel keeps for a watch that has not read
// them yet. Busy nodes change thousands of rules at once.
const receiveBuffer = 4 << 20

// Watch begins to watch the instance's table. The Watch hears of every transaction from
// now on. The caller closes it.
//
//	nft monitor
func (t *Tables) Watch(instance string) (*Watch, error) {
	c, err := t.openReader()
	if err != nil {
		return nil, fmt.Errorf("watching nftables: %w", err)
	}
	// If the kernel grants only a smaller buffer, Next still misses nothing (ENOBUFS).
	_ = c.SetReadBuffer(receiveBuffer)
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		c.Close()
		return nil, fmt.Errorf("watching nftables: %w", kernel.Classify(err))
	}
	t.conns.watch()
	return &Watch{tables: t, name: stamp.Table(instance), c: c}, nil
}

// Next waits for a transaction that touches the table. If Next hears of several such transactions at
// once, it returns one News for all of them. If the socket could not hold all news (ENOBUFS), Next says
// that others touched the table in the current generation. When ctx ends, Next returns ctx.Err(); a
// later call goes on where it stopped.
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
			// The kernel ends the news of a transaction with the generation that the transaction made.
			if g, ok := generationOf(m); ok {
				if w.touched {
					last = News{g, w.gone, last.Others || w.others}
				}
				w.touched, w.gone, w.others = false, false, false
			} else if w.about(m) {
				w.touched = true
				w.others = w.others || !w.tables.conns.own(m.Header.PID)
				switch inet := m.Data[0] == unix.NFPROTO_INET; {
				case inet && m.Header.Type == messageType(unix.NFT_MSG_DELTABLE):
					w.gone = true
				case inet && m.Header.Type == messageType(unix.NFT_MSG_NEWTABLE):
					w.gone = false
				}
			}
		}
		if last.Made != 0 {
			return last, nil
		}
	}
}

// about reports whether a message is about the table, or the one of family bridge: attribute 1 is the table's name in
// nftables messages of every sort.
func (w *Watch) about(m netlink.Message) bool {
	attrs, err := attributes(m)
	return err == nil && (m.Data[0] == unix.NFPROTO_INET || m.Data[0] == unix.NFPROTO_BRIDGE) && text(attrs[unix.NFTA_TABLE_NAME]) == w.name
}

// current reads the current generation, on a socket of its own.
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
