package doctor

import "time"

// Checks lists all checks, in the order in which people read their results. To add a check is
// to add an entry here, and a fault to the list planted, for TestPlanted.
func Checks() []Check {
	return []Check{
		{Name: "agent", Look: lookAgent,
			Why: "without its agent no pod of this node can be attached. Pods that are attached keep their network, and pods still end"},
		{Name: "agent-place", Look: lookPlace,
			Why: "an agent attaches pods to its own network namespace, and finds pods by its own mounts. This program looks at the namespaces that it was started in"},
		{Name: "capabilities", Look: lookCapabilities,
			Why: "the agent needs these rights for pods: to change links, rules and sysctls, to enter namespaces, to open /proc/PID/ns/net"},
		{Name: "seccomp", Look: lookSeccomp,
			Why: "a system call that a filter refuses fails each time: a release that needs it is owed, and an ADD that needs it fails"},
		{Name: "runner", Look: lookRunner,
			Why: "berth-runner runs the CNI plugins that make pods' further networks. Without it these networks can be neither made nor released: pods that ask for one do not start, and releases are owed until it is back"},

		{Name: "kernel-links", Look: lookLinks,
			Why: "a pod's interface is a veth with a group, an alias and a second name, and routes lead to it"},
		{Name: "kernel-nftables", Look: lookTable, Limit: 10 * time.Second, // the kernel may have to load modules
			Why: "Berth's table cuts dying pods off, keeps pods to their own addresses and connections, and masquerades"},
		{Name: "kernel-tbf", Look: lookShaping,
			Why: "a pod's limits of bandwidth are token buckets of the kernel's, at both ends of its link. Without them ADD fails for pods that ask for limits"},
		{Name: "kernel-police", Look: lookPolice,
			Why: "a pod with CAP_NET_RAW, which containers have by default, can send past the token bucket of its own end; an eBPF program at the node's end drops that"},
		{Name: "kernel-wireguard", Look: lookWireGuard, Limit: 10 * time.Second, // the kernel may have to load a module
			Why: "with kubernetes.routing wireguard, packets go to other nodes' pods through WireGuard or not at all: nothing goes in clear"},
		{Name: "kernel-namespaces", Look: lookIdentity,
			Why: "a namespace's path and inode can come again. Only a number that never does tells a pod from its successor for certain"},

		{Name: "router-advertisements", Look: lookRouters,
			Why: "a link that forwards IPv6 takes router advertisements only with accept_ra=2: the node loses the default route from an advertisement, and then the addresses"},
		{Name: "forwarding", Look: lookForwarding,
			Why: "a node that does not forward drops what its pods send to anybody else, and what others send to them"},
		{Name: "rp-filter", Look: lookReversePath,
			Why: "a strict rp_filter drops a packet that comes by a link other than the one by which its answer would leave. With several uplinks it may drop any answer to a pod"},
		{Name: "route-localnet", Look: lookLocalnet,
			Why: "with route_localnet machines on the link's network can reach services that the node offers only on 127.0.0.1 (CVE-2020-8558). Berth's table keeps pods from them, but not other machines"},
		{Name: "conntrack-room", Look: lookConntrack,
			Why: "all pods and the node share one table of connections. If it is full, nobody gets a new one"},

		{Name: "firewall", Look: lookFirewall,
			Why: "a packet has to pass the forward chains of all tables: Berth's cannot let through what another one drops"},
		{Name: "firewall-legacy", Look: lookLegacy,
			Why: "legacy iptables drops packets beside nftables, which does not show it"},
		{Name: "networkd", Look: lookNetworkd,
			Why: "systemd-networkd removes routes and rules that are not its own, when it starts and when a link changes. The agent puts routes back, and pods lose packets until then"},
		{Name: "networkmanager", Look: lookNetworkManager,
			Why: "a NetworkManager that manages a pod's link gives it addresses and routes of its own, or sets it down"},
		{Name: "pools", Look: lookPools,
			Why: "if somebody else on the node uses a pool's addresses, the pool takes that traffic away, or nobody reaches the pool's pods. berthd refuses such a pool"},

		{Name: "run-folder", Look: lookRun,
			Why: "a reboot has to empty this folder: that is how the agent tells a reboot from a restart"},
		{Name: "state-folder", Look: lookState,
			Why: "the ledger has to outlive a crash of the node, and an answer of DEL waits for it. A server that is away would keep both waiting"},
		{Name: "netns-mounts", Look: lookMounts,
			Why: "an agent that does not see what runtimes mount in /run/netns cannot enter pods, and one that keeps a copy of such a mount keeps dead pods' namespaces alive"},
		{Name: "space", Look: lookSpace,
			Why: "without room on the disk the ledger takes no ADD. DELs have reserved room, until it is used up"},
		{Name: "sync", Look: lookSync,
			Why: "ADD and DEL each wait until the ledger's disk has their commit: a slow disk is what pods wait for"},
		{Name: "clock", Look: lookClock,
			Why: "Berth orders requests by a clock that nobody sets. But the times in logs and events, and how long addresses rest over a reboot, are the wall clock's"},

		{Name: "runtime", Look: lookRuntime,
			Why: "the plugin and its configuration have to be where the container runtime looks for them, which its own configuration says"},
		{Name: "plugin", Look: lookPlugin,
			Why: "the runtime executes this program for each pod"},
		{Name: "loopback", Look: lookLoopback,
			Why: "containerd runs a plugin of this name for each pod, with every network"},
		{Name: "conflist", Look: lookConflist,
			Why: "a runtime takes the first configuration in this folder, by name"},
	}
}
