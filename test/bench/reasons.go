package main

import "strings"

// reasons say why a target is missed, by the beginning of the target's name. Profiles and traces
// of runs that missed the target have shown the reasons.
var reasons = []struct{ target, what string }{
	{"ADD p50 / bare", "In the agent an ADD takes 1.2 ms when nothing else runs (`go test -bench Verbs ./internal/agent`): the ledger's commit, with an fdatasync, takes 0.4 ms, and the link 0.8 ms. " +
		"The rest above the floor is the way to the agent: a connection, and four wake-ups of sleeping threads. Wake-ups are slow on this virtual machine, and slower when its neighbours are busy: the floor itself varies by a factor of two between runs."},
	{"DEL p50 / bare", "In the agent a DEL takes 0.6 ms, its commit included. ADD p50 explains the rest."},
	{"DEL p50, times faster than", "A DEL cannot take less time than the floor. Berth was 8 times faster where the floor was 1.5 ms. Here the floor is about twice that, and the reference plugins wait for the kernel as long as there."},
	{`DEL p50 with "wait"`, "Before this DEL answers, Berth also deletes the pod's connection tracking entries, and the reference plugins do not. Going over the kernel's table (262,144 buckets) takes 6.5 ms, and the link's deletion waits for processors that do so."},
	{"250 ADDs at once", "See ADD p50. All ADDs share the kernel's one lock for links."},
	{"250 DELs at once", "See DEL p50. Meanwhile the same two processors delete the links of DELs that were answered before."},
	{"agent's CPU a", "Of 1.8 ms an ADD the kernel takes 1.1, and of 0.84 ms a DEL 0.54 (250 at once, /proc/PID/stat of three runs). By perf record, netlink messages take 25% of an ADD and 38% of a DEL: making, changing and deleting links and routes. Switching threads takes 9 and 11%, garbage collection 5 and 2%, fdatasync 2 and 3%. The rest is many small parts. On a busy machine it grows with the time that threads wait for each other."},
	{"host ports: ", "The ports are one more transaction of nftables, which an ADD waits for. A DEL answers before the agent removes them, but on two processors the next DEL shares these with that. Where other programs run, the rounds of 15 differ by more than the ports cost."},
	{"bandwidth: ", "The limits are in the messages that make the link, and die with it. The cut of a pod with an ingress rate also sets the link down, with the kernel's lock of all links, so that nothing that waits in the link's queue reaches the pod: 0.1 ms without a queue, and 0.4 with one."},
	{"three networks of other plugins: ", "Berth adds the process of berth-cni, a commit of the ledger ahead of the first plugin and for an ADD one behind the last, and for each plugin its way through berth-runner, 0.7 ms for ADD: " +
		"the agent asks where it is and has it executed. Each is a wait for the disk or for another process, and takes several times as long where other programs run. The commits between the plugins run beside them."},
	{"three networks: ", "Each network is a link of its own, which the kernel makes under its one lock of all links. The first network's commit comes before the others', which are one write, and the cuts of a DEL go one after the other."},
	{"berthd resident", "Of it, 13.6 MB are the pages of the program itself, and 5 MB what Go's runtime needs besides the heap. The heap has 6 MB in use at the end of such a churn: about 1.5 each for an agent without pods, for tombstones, and for the events that clients can ask for again, 1.2 for the addresses that were given out, and 0.3 for those that rest. It grows to twice as much before garbage is collected."},
	{"DEL p50 with the history", "A record is written by a goroutine of its own, behind the answer. On two processors the next DEL shares them with it."},
	{"links gone a second", "See DELs a second by the API, until the links are gone: deletions yield to the ADDs that the benchmark makes meanwhile. The kernel alone yields to nobody."},
	{"DELs a second by the API, until the links are gone", "The 4,990 DELs were answered in 4.6 s, and their links were gone after 7.5 s. Meanwhile the benchmark attaches a pod every 27 ms, until 256 are attached, which takes 6.9 s. As long as pods are attached, deletions yield to them (internal/engine/yield.go, line.go): one message at a time, of 16 links, and not four of 32; with a pause of 50 ms before each, if fewer than 1,024 links wait. So about 1,000 links wait when the last DEL is answered. They go at 250 a second, until the benchmark attaches no more pods, and the rest in half a second. Without a pause the ADDs would wait longer than they do now."},
	{"DELs a second by the API", "The kernel holds its lock for links for 12 to 20 ms to delete 32 links on a node with few links, and up to twice that with thousands. Meanwhile the agent answers the next pods' DELs, whose cuts need the lock, too, and go first. The table has both rates."},
	{"longest wait to change another link", "It is the longest of all rounds. One message deletes 32 links, and the kernel holds the lock for all of them. Fewer links a message would make everything slower, and the median wait is next to nothing."},
	{"longest ADD while the API", "An ADD that comes when deletions begin may have to wait for two or three messages that delete 16 links each."},
	{"ADD p50 with", "The difference grows with the number of network namespaces, not of attachments (the last row of that table has the namespaces alone): for each message about a link, the kernel looks through all namespaces' ids."},
	{"DEL p50 with", "The floor differs as much between the two nodes."},
	{"restart with", "The agent decodes 5,000 records while the kernel lists 5,000 links. For each link, the kernel walks the ids of all pods' network namespaces. That keeps both processors busy all the time."},
	{"DEL p50 while the agent is away", "The plugin waits twice for the disk, for the deletion and for its name, and once for the kernel's lock for links. The floor has none of these waits, and on a busy machine they are long."},
	{"start with 1000 queued", "The kernel deletes the links, 32 a message, while the agent restores the rest. The agent's CPU in the table below includes the kernel's work for the agent; the rest is waiting for the disk and, on a busy machine, for processors."},
	{"CPU of a sweep", "A sweep reads 10,000 routes and as many neighbours, and compares them with the ledger. It lists links only every ten minutes: for each link, the kernel walks all 5,000 namespaces' ids (net_eq_idr)."},
	{"longest wait to change a link in a second", "The longest wait is during audits, which list all links: the kernel holds its lock while it describes a hundred links, and walks 5,000 namespaces' ids for each. Sweeps have a row of their own."},
	{"ADD p99 while", "250 requests, their cuts and their messages share the kernel's one lock for links and two processors with the ADD. Deletions let the ADD go first, but not in the middle of a message of 16 links. ptp's ADD, in the same table, waits a hundred times as long."},
	{"30 ADDs at once", "See ADD p50. A p99 of 270 ADDs is the third longest: where other programs run, it says how long a plugin waited for a processor."},
	{"greatest throughput between nodes", "See a byte between nodes: at 15 Gbit/s a packet of 64 KB and its acknowledgement have 35 µs for all, and pass two nodes each. " +
		"The stream's ends and the nodes share two processors, so where other programs run the rounds differ by a factor of three and more."},
	{"a byte between nodes", "Berth's nftables rules take 1.1 µs for each packet and node (IPv6: 1.8), 28% of what a node does for a packet; the masquerade of kindnet's and flannel's ways takes next to nothing of a known connection's packets (perf record). " +
		"The rules make sure, for each packet, that the pod has the address that it claims, that its link is not cut off, and that nothing is hidden in fragments or headers: those ways check none of that."},
	{"claim and free", "One address takes 126 to 156 ns, whatever the size and fill of its pool: the target is in the middle of that. Two rows take longer. A pool of two families claims two addresses, 123 ns each. With 1,000 CIDRs, Free looks for an address's CIDR by ten comparisons whose outcome no processor can foretell (table.find, a sixth of the time in a profile): 183 to 293 ns in eight runs. A claim allocates no memory."},
}

// reason returns why a target is missed, or "".
func reason(target string) string {
	for _, r := range reasons {
		if strings.HasPrefix(target, r.target) {
			return r.what
		}
	}
	return ""
}
