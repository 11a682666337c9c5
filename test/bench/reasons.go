package main

import "strings"

// reasons say why a target is missed, by the beginning of its name, as profiles and traces
// of such runs have shown.
var reasons = []struct{ target, what string }{
	{"ADD p50 / floor", "In the agent an ADD takes 1.2 ms when nobody else runs (`go test -bench Verbs ./internal/agent`): 0.45 ms are the ledger's commit, two fdatasyncs, and 0.8 ms the link. " +
		"The rest above the floor is the way there: a connection, and four wake-ups of sleeping threads, which this virtual machine makes dear and its neighbours dearer: the floor itself varies by a factor of two between runs."},
	{"DEL p50 / floor", "In the agent a DEL takes 0.6 ms with its commit; see ADD for the rest."},
	{"DEL p50, times faster than", "A DEL cannot take less than the floor; 8 times faster was measured where the floor was 1.5 ms, and here it is about twice that, while the peers' wait for the kernel stayed the same."},
	{`DEL p50 with "wait"`, "Berth also forgets the pod's connection tracking entries before it answers, which the reference plugins do not: a pass over the kernel's table takes 6.5 ms (262,144 buckets), and the link's deletion waits for processors that are in it."},
	{"250 ADDs at once", "See ADD p50; all of them share the kernel's one lock for links."},
	{"250 DELs at once", "See DEL p50; answered DELs' links are deleted at the same time, on the same two processors."},
	{"DELs by the API a second", "The kernel's lock for links: 32 links take it for 12 to 20 ms on a node with few links and up to twice that with thousands. They go while the next pods' DELs are answered, whose cuts need it as well, and which go first: the table has both rates."},
	{"longest stall of another", "One message deletes 32 links, and the lock is held for all of them; fewer a message would make everything slower, and the median stall is nothing."},
	{"longest ADD meanwhile", "An ADD may have to wait for two or three messages that delete 16 links each, if it comes as they begin."},
	{"ADD p50 with", "What is left grows with the number of network namespaces, not of attachments (the last row of that table has the namespaces alone): the kernel looks through all namespaces' ids for each message about a link."},
	{"DEL p50 with", "The floor's own variation between the two nodes is as large."},
	{"restart with", "5,000 records are decoded while the kernel lists 5,000 links, for each of which it walks the ids of all pods' network namespaces; the two processors are busy with that all the time."},
	{"DEL p50 while the agent is away", "A process starts, and waits twice for the disk, for the deletion and for its name, and once for the kernel's lock on links. On a busy machine these waits decide, which the floor does not have."},
	{"start with 1000 queued", "The kernel deletes the links, 32 a message, while the agent restores the rest. The agent's CPU, in the table below, is its own part and the kernel's on its behalf; the rest is waiting for the disk and, on a busy machine, for processors."},
	{"CPU of a sweep", "10,000 routes and as many neighbours are read, and held against the ledger. Links are listed every ten minutes alone: for each of them the kernel walks all 5,000 namespaces' ids (net_eq_idr)."},
	{"longest wait of another's change of a link in a second", "It is during audits, which list all links: the kernel makes a hundred of them known in one go, with its lock held, and walks 5,000 namespaces' ids for each. Sweeps have a row of their own."},
	{"ADD p99 while", "250 requests, their cuts and their messages share the kernel's one lock for links and two processors with the ADD. Deletions let it go first, but not in the middle of a message of 16 links. ptp's, in the same table, is a hundred times as long."},
	{"claim and free", "The benchmark ran beside others on a shared machine; alone it shows 117 to 147 ns. It does not allocate, and no pool's size or fill makes it slower."},
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
