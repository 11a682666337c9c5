package rtnl

// Link returns one link by its name, or kernel.ErrNotFound.
//
//	ip link show NAME
func (c *Conn) Link(name string) (Link, error) {
	var l Link
	err := c.Do(GetLink(name, &l))
	return l, err
}
