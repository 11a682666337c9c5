// The pod of test/cluster: a program that is all of a container image.
//
//	pod pause           # the sandbox: waits
//	pod serve           # tells everybody who connects to port 8080 its name ($POD) and the client's address, and then much more
//	pod ask NAME=ADDR...  # asks others, and fails unless each has its name and sees this pod's own address
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

const port = "8080"

// more fills packets of the size of the path's MTU.
var more = strings.Repeat("more ", 20_000)

func main() {
	switch os.Args[1] {
	case "serve":
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		pause()
	case "ask":
		if !askAll(os.Args[2:]) {
			os.Exit(1)
		}
	default:
		pause()
	}
}

// pause waits for SIGTERM, says so, and goes on for as long as $LINGER says.
func pause() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	<-told
	fmt.Println("ending")
	linger, _ := time.ParseDuration(os.Getenv("LINGER"))
	time.Sleep(linger)
}

func serve() error {
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Fprintf(conn, "%s %s\n%s", os.Getenv("POD"), conn.RemoteAddr().(*net.TCPAddr).IP, more)
			conn.Close()
		}
	}()
	return nil
}

// askAll asks all others at once, and prints what went wrong.
func askAll(others []string) (well bool) {
	well = true
	var (
		all sync.WaitGroup
		mu  sync.Mutex
	)
	for _, o := range others {
		name, addr, _ := strings.Cut(o, "=")
		all.Go(func() {
			if err := ask(name, addr); err != nil {
				mu.Lock()
				defer mu.Unlock()
				fmt.Printf("%s at %s: %v\n", name, addr, err)
				well = false
			}
		})
	}
	all.Wait()
	return well
}

func ask(name, addr string) error {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(addr, port), 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	all, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	said, rest, _ := strings.Cut(string(all), "\n")
	said += "\n"
	if rest != more {
		return fmt.Errorf("says %q, and then %d bytes instead of %d", said, len(rest), len(more))
	}
	if want := fmt.Sprintf("%s %s\n", name, conn.LocalAddr().(*net.TCPAddr).IP); said != want {
		return fmt.Errorf("says %q, want %q", said, want)
	}
	return nil
}
