// Package rtnl speaks rtnetlink: links, addresses, routes and neighbours of one
// network namespace. A change is a Request, which reads as the ip command that
// does the same; a Conn sends one or many in one system call. Links are found
// by name or, whatever they are called, by index; no function here lists a node's
// links unless it says so.
//
// Message layouts and attribute encoding are those of vishvananda/netlink/nl.
// Its own functions are not used, because they look links up before and after
// each change, and open a socket a call.
package rtnl
