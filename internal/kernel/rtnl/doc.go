// Package rtnl speaks rtnetlink: it reads and changes the links, addresses, routes and
// neighbours of one network namespace. A Request is one change or question; its text is
// the ip command that does the same. A Conn sends one or many requests in one system
// call. Requests find a link by its name or by its index, which does not change when
// somebody renames the link. No function here lists a node's links unless it says so.
//
// The package uses the message layouts and the attribute encoding of
// vishvananda/netlink/nl. It does not use the functions of vishvananda/netlink, because
// they look links up before and after each change, and open a socket for each call.
package rtnl
