// The pod of test/cluster: a program that is all of a container image.
//
//	pod pause           # the sandbox: waits
//	pod serve           # tells everybody who connects to port 8080 its name ($POD) and the client's address, and then much more;
//	                    # whoever connects to port 8081 writes a line "ask ..." or "meet ...", and is told "well" or what is not
//	pod ask NAME=ADDR...  # asks others, and fails unless each has its name and sees this pod's own address
//	pod meet NAME,... ADDR:PORT...  # asks at each place until each of the others has answered there
//	nc [-v] [-t] [-u] [-w SECONDS] HOST PORT  # sends its standard input, by TCP or UDP, and prints what is answered
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The ports of serve: for others, and for tests that have the pod ask others.
const port, orders = "8080", "8081"

// more fills packets of the size of the path's MTU.
var more = strings.Repeat("more ", 20_000)

func main() {
	if filepath.Base(os.Args[0]) == "nc" {
		if err := nc(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	switch os.Args[1] {
	case "serve":
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		pause()
	case "ask", "meet":
		if said := obey(os.Args[1:]); said != "" {
			fmt.Print(said)
			os.Exit(1)
		}
	default:
		pause()
	}
}

// obey does what "ask" or "meet" with its arguments says, and returns what went wrong; "": nothing.
func obey(order []string) (said string) {
	switch {
	case len(order) > 1 && order[0] == "ask":
		return askAll(order[1:])
	case len(order) > 2 && order[0] == "meet":
		return meetAll(strings.Split(order[1], ","), order[2:])
	}
	return fmt.Sprintf("%q is no order\n", order)
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

// nc is the part of nc(1) that Kubernetes' tests use. It waits for an answer for as long as -w says: to a datagram, for one.
func nc(args []string) error {
	flags := flag.NewFlagSet("nc", flag.ContinueOnError)
	flags.Bool("v", false, "")
	flags.Bool("t", false, "")
	udp, wait := flags.Bool("u", false, ""), flags.Int("w", 10, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	network := "tcp"
	if *udp {
		network = "udp"
	}
	limit := time.Duration(*wait) * time.Second
	conn, err := net.DialTimeout(network, net.JoinHostPort(flags.Arg(0), flags.Arg(1)), limit)
	if err != nil {
		return err
	}
	defer conn.Close()
	said, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = conn.Write(said)
	}
	if err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(limit))
	answer := make([]byte, 64<<10)
	n, err := conn.Read(answer)
	os.Stdout.Write(answer[:n])
	return err
}

func serve() error {
	return errors.Join(
		listen(port, func(conn net.Conn) {
			fmt.Fprintf(conn, "%s %s\n%s", os.Getenv("POD"), conn.RemoteAddr().(*net.TCPAddr).IP, more)
		}),
		listen(orders, func(conn net.Conn) {
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprintln(conn, cmp.Or(obey(strings.Fields(line)), "well"))
		}))
}

// listen has everybody served who connects to a port.
func listen(port string, serve func(net.Conn)) error {
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
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return nil
}

// askAll asks all others at once, and returns what went wrong.
func askAll(others []string) (said string) {
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
				said += fmt.Sprintf("%s at %s: %v\n", name, addr, err)
			}
		})
	}
	all.Wait()
	return said
}

// meetAll asks at places until each of the others has answered there, and returns what went wrong.
func meetAll(names, places []string) (trouble string) {
	for _, place := range places {
		met := map[string]bool{}
		for end := time.Now().Add(30 * time.Second); len(met) < len(names); {
			said, _, err := say(place)
			name, _, _ := strings.Cut(said, " ")
			if err == nil && slices.Contains(names, name) {
				met[name] = true
			}
			if time.Now().After(end) {
				trouble += fmt.Sprintf("at %s answer only %v of %v; last: %q, %v\n", place, met, names, said, err)
				break
			}
		}
	}
	return trouble
}

func ask(name, addr string) error {
	said, own, err := say(net.JoinHostPort(addr, port))
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%s %s", name, own); said != want {
		return fmt.Errorf("says %q, want %q", said, want)
	}
	return nil
}

// say returns what is said at a place, and this program's own address there.
func say(place string) (said string, own net.IP, err error) {
	conn, err := net.DialTimeout("tcp", place, 10*time.Second)
	if err != nil {
		return "", nil, err
	}
	defer conn.Close()
	own = conn.LocalAddr().(*net.TCPAddr).IP
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	all, err := io.ReadAll(conn)
	if err != nil {
		return "", own, err
	}
	said, rest, _ := strings.Cut(string(all), "\n")
	if rest != more {
		return said, own, fmt.Errorf("says %q, and then %d bytes instead of %d", said, len(rest), len(more))
	}
	return said, own, nil
}
