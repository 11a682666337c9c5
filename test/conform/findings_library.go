package main

// ofLibrary are findings in the libraries of all reference plugins, which show with each of them.
var ofLibrary = []finding{
	{
		name: "version-echo", plugin: "all plugins", title: "the answer to VERSION is always in the plugin's newest version",
		text:  "skel of the CNI library ignores the cniVersion of the request, which the answer must repeat (CNI 1.0.0 and 1.1.0, section 5, VERSION). A runtime that knows no newer version cannot tell whether it may read the answer.",
		shows: []sight{{"version/echo", nil}},
	},
	{
		name: "error-version", plugin: "all plugins", title: "errors have no cniVersion",
		text:     "`types.Error` of the CNI library has no field for it. 0.4.0 requires it (Result); later versions only recommend it (section 5, Error). A runtime has to guess in which form the error is.",
		upstream: "cni PR 408, which was closed, would have added the field.",
		shows:    []sight{{"add/error-version", nil}},
	},
	{
		name: "netns-file", plugin: "all plugins", title: "DEL fails if a plain file is where the network namespace was",
		text:     "If the mount of the network namespace is gone and its file is not, as after an unmount whose file nobody removed, ns.GetNS fails with `unknown FS magic`, and the plugins pass that on. DEL succeeds if the path is gone. bridge, and the plugins that delegate to bridge, do not even free the address. The pod can never be removed until somebody removes the file. DEL should succeed without a network namespace (CNI 1.1.0, section 2, DEL); that a file may be in its place is the suite's own.",
		upstream: "plugins#685 was about a path that is gone.",
		shows:    []sight{{"del/netns-not-one", nil}},
	},
	{
		name: "delegated-failed", plugin: "all plugins", title: "the IPAM plugin gets no DEL after its failed ADD",
		text:     "If the IPAM plugin's ADD fails, the plugins fail at once. They call its DEL only if a later step of their own fails. A plugin should call DEL after a delegated plugin's ADD has failed (CNI 1.1.0, section 4, Delegated Plugin Execution Procedure): an IPAM plugin that has reserved an address before it failed keeps it, if the runtime calls no DEL either.",
		upstream: "cni#530 is about what the sentence means.",
		shows:    []sight{{"add/delegated-failed", nil}},
	},
	{
		name: "gc-delegated", plugin: "all plugins", title: "GC is not forwarded to the IPAM plugin",
		text:     "A plugin must forward GC to the plugins that it delegates to (CNI 1.1.0, section 2, GC). These succeed, and do not: an IPAM plugin that can clean up is never asked to, and its addresses run out.",
		upstream: "plugins#1013 is about bridge, #1014 about ptp.",
		shows:    []sight{{"gc/delegated", nil}},
	},
	{
		name: "gc-unlisted", plugin: "all plugins", title: "GC cleans up nothing",
		text:     "GC should remove what belongs to attachments that are not listed (CNI 1.1.0, section 2, GC). The plugins say that they support 1.1.0, and have no GC: skel answers with success. A runtime that relies on it, after a crash or a reboot, keeps addresses and rules for ever.",
		upstream: "plugins#1013 is about bridge, #1014 about ptp, #1047 about host-local.",
		shows:    []sight{{"gc/unlisted", nil}, {"gc/empty-list", nil}},
	},
}
