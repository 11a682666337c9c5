package main

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/root"
)

// prefixLen is how many characters of an instance's id the names of its links
// have, behind their b.
const prefixLen = 4

// cut sets a host veth down, and so cuts its pod off. A link that is gone is as
// good.
func cut(link string) error {
	if err := setDown(link); err != nil && err != unix.ENODEV {
		return fmt.Errorf("setting link %s down: %w", link, err)
	}
	return nil
}

// isOurs reports whether the link that prevResult names is this attachment's, for
// all that can be seen without an agent.
func (c *call) isOurs() (bool, error) {
	link := c.head.HostVeth
	if link == "" || !isOf(c.head.Root, link) {
		return false, nil
	}
	others, err := isStampedElse(link, c.key())
	return err == nil && !others, err
}

// key is the attachment's, as attachment.Key writes it.
func (c *call) key() string { return c.head.Name + "/" + c.container + "/" + c.ifname }

// isOf reports whether a link with the form of Berth's is of the instance that
// lives at a root. Where that cannot be known, the form decides: 14 characters
// in an alphabet of 32 are nobody else's by chance.
func isOf(dir root.Dir, link string) bool {
	instance, err := readShort(dir.Instance())
	if err != nil || len(instance) < prefixLen {
		return true
	}
	return link[1:1+prefixLen] == instance[:prefixLen]
}

// isStampedElse reports whether a link says by its alias that it is another
// attachment's: a prevResult can be wrong, and who is named by mistake must stay
// connected. One that says nothing, or is gone, does not.
func isStampedElse(link, key string) (bool, error) {
	answer, err := look(device{name: link})
	if err != nil && err != unix.ENODEV {
		return false, fmt.Errorf("asking for the alias of link %s: %w", link, err)
	}
	berths, own := stamp(answer.text(unix.IFLA_IFALIAS), link, key)
	return berths && !own, nil
}

// leadsTo returns the name of the host's end of the link whose other end is a
// pod's interface, if its alias says that it is the attachment's of a key. The pod
// is asked for a number alone, and of an alias that is cut off nobody can tell
// whose it is: so a pod that lies has nobody else cut off. Of the key's
// incarnations it is the one in the pod now; one that is not meant, as it began
// after this DEL, is set up again by the agent.
//
// This is a help for runtimes that lost the result of ADD, or send none (of
// configurations below 0.4.0): what cannot be seen, such as a namespace that is
// gone, is "".
func leadsTo(netns, ifname, key string) string {
	pod, err := ns.Open(netns)
	if err != nil {
		return ""
	}
	defer pod.Close()
	var inside answer
	err = pod.Do(func() (err error) {
		inside, err = look(device{name: ifname})
		return err
	})
	if err != nil {
		return ""
	}
	peer := inside.number(unix.IFLA_LINK)
	if peer == 0 {
		return ""
	}
	end, err := look(device{index: peer})
	if err != nil {
		return ""
	}
	link := end.text(unix.IFLA_IFNAME)
	if !cni.IsLinkName(link) {
		return ""
	}
	alias := end.text(unix.IFLA_IFALIAS)
	if _, own := stamp(alias, link, key); !own || len(alias) == maxAlias {
		return ""
	}
	return link
}

// maxAlias is how many bytes a link's alias has at most (IFALIASZ - 1).
const maxAlias = 255

// stamp reads the alias of a link with the form of Berth's (attachment.Alias):
// whether it is Berth's as well, and the attachment's of a key.
func stamp(alias, link, key string) (berths, own bool) {
	words := strings.SplitN(alias, " ", 3)
	if len(words) != 3 || words[0] != "berth" {
		return false, false
	}
	want := fmt.Sprintf("berth %s %s %s", words[1], link[1+prefixLen:], key)
	return true, alias == want[:min(len(want), maxAlias)]
}
