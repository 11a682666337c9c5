package deletions

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is the time between two looks at a folder that cannot be watched.
const lookEvery = time.Second

// Events of inotify(7). The kernel sends some of the events that end a watch unasked.
const (
	watched = unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	ended   = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_IGNORED | unix.IN_UNMOUNT
)

// Watch calls changed, in a goroutine of its own and one call at a time, whenever there may
// be something new in the queue, until the queue is closed. The watch has begun when Watch returns,
// and misses nothing that is written from then on. If somebody removes the folder, Watch makes it
// again, and watches the new one.
//
// If Watch cannot have an inotify instance (each user has a limited number, and every second
// program wants one), it calls changed once a second.
func (q *Queue) Watch(changed func()) error {
	events, err := q.inotify()
	if err != nil {
		return err
	}
	go q.keepWatching(events, changed)
	return nil
}

// Close ends the watches of a queue. A call of changed may still be under way. A queue has
// nothing else to close.
func (q *Queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// Watched reports whether the kernel tells the queue at once of what comes into the folder. While the
// queue has no inotify instance, something new may be in the folder for a second before Watch says so.
func (q *Queue) Watched() bool { return q.followed.Load() }

// inotify watches the folder, and makes it if it is missing. It returns no file if there is
// no inotify instance to be had.
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
	// Through the open folder, because its path may lead to another folder by now.
	if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", f.fd), watched|unix.IN_ONLYDIR); err != nil {
		unix.Close(fd)
		return nil, nil
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// keepWatching calls changed when events tell of something. It also calls changed before and after
// each new watch, because it may have missed events between two watches.
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
		changed()               // before inotify, which may hang with the folder: some callers look only when changed tells them to
		events, _ = q.inotify() // the next look at the folder says what is wrong with it
		changed()
	}
}

// follow calls changed for events until the folder is no longer the queue's folder, or the
// queue is closed.
func (q *Queue) follow(events *os.File, changed func()) {
	q.followed.Store(true)
	defer q.followed.Store(false)
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-q.closed:
		case <-over:
		}
		events.Close() // ends Read
	}()
	buf := make([]byte, 64<<10) // room for many events, which are one call of changed
	for {
		n, err := events.Read(buf)
		if err != nil || hasEnded(buf[:n]) {
			return
		}
		changed()
	}
}

// hasEnded reports whether one of events (struct inotify_event) is about the end of the watch.
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
