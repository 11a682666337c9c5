package oracle

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The states of sockets in /proc/net: a TCP socket that listens, and a UDP socket that is not connected.
const (
	listens     = "0A"
	unconnected = "07"
	unixListens = "00010000" // a flag, in place of a state
)

// sockets is `ss --listening` of the network namespace of the calling thread: TCP, UDP and unix sockets that wait for others. It
// leaves out ports that the kernel chose, and the caller's own sockets.
func sockets() ([]string, error) {
	low, high, err := chosenPorts()
	if err != nil {
		return nil, err
	}
	own := ownSockets()
	var lines []string
	for _, of := range []struct{ file, state string }{{"tcp", listens}, {"tcp6", listens}, {"udp", unconnected}, {"udp6", unconnected}} {
		rows, err := table(of.file)
		if err != nil {
			return nil, err
		}
		for _, f := range rows {
			// slot local remote state queues timer retransmissions uid timeout inode
			if len(f) < 10 || f[3] != of.state || own[f[9]] {
				continue
			}
			at, err := address(f[1])
			if err != nil {
				return nil, err
			}
			if at.Port() < low || at.Port() > high {
				lines = append(lines, fmt.Sprintf("socket %s %s", of.file, at))
			}
		}
	}
	rows, err := table("unix")
	if err != nil {
		return nil, err
	}
	for _, f := range rows {
		// number references protocol flags type state inode path
		if len(f) > 7 && f[3] == unixListens && !own[f[6]] {
			lines = append(lines, "socket unix "+f[7])
		}
	}
	return lines, nil
}

// table returns the rows of a file of /proc/net below its heading.
func table(file string) ([][]string, error) {
	text, err := os.ReadFile("/proc/thread-self/net/" + file)
	if errors.Is(err, fs.ErrNotExist) { // there is no IPv6
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing sockets: %w", err)
	}
	var rows [][]string
	for _, line := range strings.Split(string(text), "\n")[1:] {
		rows = append(rows, strings.Fields(line))
	}
	return rows, nil
}

// chosenPorts returns the range from which the kernel chooses ports.
func chosenPorts() (low, high uint16, err error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &low, &high)
	}
	return low, high, err
}

// ownSockets returns the inodes of the sockets of this process.
func ownSockets() map[string]bool {
	own := map[string]bool{}
	all, _ := filepath.Glob("/proc/self/fd/*") // the pattern is right
	for _, fd := range all {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	return own
}

// address reads an address of /proc/net: words of 32 bits in the machine's order, a colon, and the port, in hexadecimal digits.
func address(text string) (netip.AddrPort, error) {
	words, digits, _ := strings.Cut(text, ":")
	port, err := strconv.ParseUint(digits, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading the address of a socket, %.60q: %w", text, err)
	}
	raw, err := hex.DecodeString(words)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("reading the address of a socket, %.60q: expected words of 32 bits", text)
	}
	for word := range slices.Chunk(raw, 4) {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("reading the address of a socket, %.60q: expected 4 or 16 bytes", text)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}
