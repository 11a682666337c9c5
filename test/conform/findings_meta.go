package main

// ofMetaPlugins are findings in plugins that have others make the network.
var ofMetaPlugins = []finding{
	{
		name: "flannel-interfaces", plugin: "flannel's plugin", title: "DEL of one of a container's two interfaces forgets the other one",
		text:  "ADD writes down the configuration for bridge in a file that has the container's name alone. The second ADD overwrites that of the first, and the DEL of either interface removes it. The DEL of the other one finds nothing, and succeeds: bridge is not called, and the address is never freed. A runtime may add a container to a network several times, each time with another interface name (CNI 1.1.0, section 2, ADD), and DEL should undo what the ADD of its own interface did (section 2, DEL).",
		shows: []sight{{"parallel/same-pod", []string{"flannel"}}},
	},
	{
		name: "flannel-check", plugin: "flannel's plugin", title: "CHECK never fails",
		text:  "CHECK does nothing, although the plugin says that it supports 0.4.0 and 1.0.0. It should forward CHECK to bridge, and fail if the interface is gone (CNI 1.1.0, section 2, CHECK, and section 4). A runtime that relies on CHECK keeps a pod without a network.",
		shows: []sight{{"check/link-gone", []string{"flannel"}}},
	},
	{
		name: "flannel-delegate", plugin: "flannel's plugin", title: "a failed ADD leaves the file of the delegate",
		text:  "ADD writes down the configuration for bridge before it executes bridge, and keeps the file if that fails. The DEL that has to follow removes it; if the runtime has ended by then, nobody does. The check is the suite's own.",
		shows: []sight{{"add/failed-undone", []string{"flannel"}}},
	},
	{
		name: "multus-interface", plugin: "Multus", title: "a refused ADD deletes the interface that was there",
		text:  "Multus sees that the container already has an interface of the name, and refuses, as it must. Then it undoes what it has not done: it calls DEL of that delegate, too, which deletes the interface of somebody else. ADD must leave that as it is (CNI 1.1.0, section 2, ADD; \"as it is\" is the suite's own).",
		shows: []sight{{"add/existing-interface", []string{"multus"}}},
	},
	{
		name: "multus-delegates", plugin: "Multus", title: "a failed ADD leaves the file of the delegates",
		text:  "ADD writes down which delegates a container has before it executes the first one, and keeps the file if it fails. The DEL that has to follow removes it; if the runtime has ended by then, nobody does. The check is the suite's own.",
		shows: []sight{{"add/failed-undone", []string{"multus"}}},
	},
	{
		name: "multus-check", plugin: "Multus", title: "CHECK does not read prevResult",
		text:  "CHECK executes CHECK of the delegates with the results that Multus itself has kept below cniDir, and never looks at the prevResult that it is given. A plugin must consult prevResult to know which interfaces and addresses to expect (CNI 1.1.0, section 2, CHECK). While both say the same nobody sees that; if they do not, such as after a restore of the runtime's cache, CHECK finds everything in order.",
		shows: []sight{{"check/prev-result", []string{"multus"}}},
	},
	{
		name: "multus-gc", plugin: "Multus", title: "GC fails on a node without pods",
		text:  "GC reads the folder of libcni's cached results, which the first ADD makes, and takes its absence for an error. There is nothing to clean up, and GC should complete without an error (CNI 1.1.0, section 2, GC). A runtime that calls GC at its start fails on each fresh node.",
		shows: []sight{{"gc/nothing", []string{"multus"}}},
	},
}
