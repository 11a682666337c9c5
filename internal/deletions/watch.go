package deletions

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often a folder is looked at that cannot be watched.
const lookEvery = time.Second

// Events of inotify(7). Some of those that end a watch come unasked.
const (
	watched = unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	ended   = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_IGNORED | unix.IN_UNMOUNT
)

// Watch calls changed, in a goroutine of its own and one call at a time,
// whenever there may be something new in the queue, until the queue is closed.
// When it returns, the watch stands: what is written from then on is noticed.
// A folder that is removed is made again, and watched.
//
// Where inotify cannot be had (its instances are limited by user, and every
// second program wants one), it looks once a second.
func (q *Queue) Watch(changed func()) error {
	events, err := q.inotify()
	if err != nil {
		return err
	}
	go q.keepWatching(events, changed)
	return nil
}

// Close ends the watches of a queue. A call of their functions may still be
// under way. There is nothing else to close.
func (q *Queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// inotify watches the folder, which is made if it is missing; nil if inotify
// cannot be had.
func (q *Queue) inotify() (*os.File, error) {
	f, err := openFolder(q.dir)
	if err != nil {
		return nil, err
	}
	defer f.close()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil
	}
	// Through the open folder: its path may be another's by now.
	if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", f.fd), watched|unix.IN_ONLYDIR); err != nil {
		unix.Close(fd)
		return nil, nil
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// keepWatching calls changed for what events tell, and what they missed when
// they have to be had anew.
func (q *Queue) keepWatching(events *os.File, changed func()) {
	for {
		if events != nil {
			q.follow(events, changed)
		} else {
			select {
			case <-q.closed:
			case <-time.After(lookEvery):
			}
		}
		select {
		case <-q.closed:
			return
		default:
		}
		changed()               // for those who look at nothing as long as nothing is told of: the folder may hang
		events, _ = q.inotify() // the next look says what is wrong with the folder
		changed()
	}
}

// follow calls changed for events until the folder is no longer the queue's, or
// the queue is closed.
func (q *Queue) follow(events *os.File, changed func()) {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-q.closed:
		case <-over:
		}
		events.Close() // ends Read
	}()
	buf := make([]byte, 64<<10) // many events at once are one call
	for {
		n, err := events.Read(buf)
		if err != nil || hasEnded(buf[:n]) {
			return
		}
		changed()
	}
}

// hasEnded reports whether one of some struct inotify_event is about the end of
// the watch.
func hasEnded(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask, length := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		if mask&ended != 0 {
			return true
		}
		events = events[min(unix.SizeofInotifyEvent+int(length), len(events)):]
	}
	return false
}
