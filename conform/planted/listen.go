package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// The fault socket-left has a process that the first pod starts, as a daemon of all pods would be. It listens at a port more for each pod.
const (
	listenerSocket = "/run/planted-listener"
	listenerEnv    = "PLANTED_LISTENER"
)

// listenFor has the process listen at a port of the node.
func listenFor(c *call) error {
	conn, err := net.Dial("unix", listenerSocket)
	if err != nil {
		if err := startListener(); err != nil {
			return err
		}
		if conn, err = net.Dial("unix", listenerSocket); err != nil {
			return err
		}
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "127.0.0.1:%d\n", 30000+c.number()); err != nil {
		return err
	}
	_, err = bufio.NewReader(conn).ReadString('\n')
	return err
}

// startListener starts the process, and returns when it serves.
func startListener() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), listenerEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	return err
}

// listen is that process: it reads addresses from whoever connects, and listens at them. It returns only an error.
func listen() error {
	l, err := net.Listen("unix", listenerSocket)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var kept []net.Listener
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
			one, err := net.Listen("tcp", strings.TrimSpace(line))
			if err == nil {
				kept = append(kept, one)
			}
			fmt.Fprintln(conn, len(kept), err)
		}
		conn.Close()
	}
}
