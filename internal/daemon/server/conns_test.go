package server

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// dial returns both ends of a connection that a server has just accepted.
func dial(t *testing.T, c *conns) (server, client net.Conn) {
	server, client = net.Pipe()
	t.Cleanup(func() { server.Close(); client.Close() })
	go c.state(server, http.StateNew)
	synctest.Wait()
	return server, client
}

// closed reports whether the other end has closed a connection.
func closed(client net.Conn) bool {
	_ = client.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := client.Read(make([]byte, 1))
	e, ok := err.(net.Error)
	return err != nil && (!ok || !e.Timeout())
}

// If there are too many connections, the server first closes a connection that is between two
// requests. If there is no such connection, the server closes the new one, and tells its client why.
func TestConnsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConns(2, slog.New(slog.DiscardHandler))
		busy, busyClient := dial(t, c)
		c.state(busy, http.StateActive)
		idle, idleClient := dial(t, c)
		c.state(idle, http.StateActive)
		c.state(idle, http.StateIdle)

		third, thirdClient := dial(t, c)
		if closed(busyClient) || closed(thirdClient) || !closed(idleClient) {
			t.Fatal("of three connections it is not the idle one that is closed")
		}
		c.state(idle, http.StateClosed)
		c.state(third, http.StateActive)

		fourth, fourthClient := dial(t, c) // the refusal blocks until it is read
		_ = fourthClient.SetReadDeadline(time.Time{})
		res, err := http.ReadResponse(bufio.NewReader(fourthClient), nil)
		if err != nil || res.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("one too many is answered %v, %v", res, err)
		}
		var said api.Error
		if err := json.NewDecoder(res.Body).Decode(&said); err != nil || said.Code != cni.CodeTryAgain {
			t.Errorf("one too many is told %+v, %v", said, err)
		}
		synctest.Wait()
		if closed(busyClient) || closed(thirdClient) || !closed(fourthClient) {
			t.Error("of four connections it is not the new one that is closed")
		}
		c.state(fourth, http.StateClosed)

		c.state(busy, http.StateClosed)
		if _, client := dial(t, c); closed(client) {
			t.Error("a connection is refused though another has ended")
		}
	})
}

// After two floods of connections in a row, the server gives memory back once, a while after the
// last connections are closed.
func TestMemoryOfFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConns(maxConns, slog.New(slog.DiscardHandler))
		var given atomic.Int32
		c.giveBack = func() { given.Add(1) }
		flood := func() {
			for range floodConns {
				c.state(nil, http.StateNew)
			}
			for range floodConns {
				c.state(nil, http.StateClosed)
			}
		}
		c.state(nil, http.StateNew)
		c.state(nil, http.StateClosed)
		time.Sleep(2 * calmTime)
		if synctest.Wait(); given.Load() != 0 {
			t.Error("memory is given back after a single connection")
		}
		flood()
		time.Sleep(calmTime / 2)
		flood()
		time.Sleep(calmTime - 1)
		if synctest.Wait(); given.Load() != 0 {
			t.Error("memory is given back too early")
		}
		time.Sleep(time.Nanosecond)
		if synctest.Wait(); given.Load() != 1 {
			t.Errorf("after a flood memory was given back %d times", given.Load())
		}
		c.state(nil, http.StateNew)
		c.state(nil, http.StateClosed)
		time.Sleep(2 * calmTime)
		if synctest.Wait(); given.Load() != 1 {
			t.Errorf("long after a flood memory was given back %d times", given.Load())
		}
	})
}
