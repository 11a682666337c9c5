package conform

// callObligations are those of section 2 that hold for each call.
var callObligations = []Obligation{
	{
		ID: "call-domain", Binds: OfRuntime, Section: "2, Overview", Level: Must,
		Says: "plugins are executed in the runtime's network namespace",
	},
	{
		ID: "call-verbs", Binds: OfPlugin, Section: "2, CNI operations", Before: "Parameters", Level: Must,
		Says:   "a plugin supports the operations of its version: ADD, DEL, CHECK and VERSION, and since 1.1.0 GC and STATUS",
		Checks: []string{"basic/attach", "check/well", "version/answer", "status/available", "gc/nothing", "errors/command"},
	},
	{
		ID: "call-container-id", Binds: OfPlugin, Section: "2, Parameters", Before: "Parameters, ADD", Level: Must,
		Says:   "a container's id is not empty, begins with a letter or a digit, goes on with these, underscores, dots and hyphens, and is the container's alone",
		Checks: []string{"limits/container-id", "limits/bad-container-id", "errors/environment"},
	},
	{
		ID: "call-ifname", Binds: OfPlugin, Section: "2, Parameters", Before: "Parameters, ADD", Level: Must,
		Says:   "the interface has the name CNI_IFNAME, or ADD fails",
		Checks: []string{"add/result", "limits/ifname", "limits/bad-ifname"},
	},
	{
		ID: "call-exit-code", Binds: OfPlugin, Section: "2, Errors", Before: "Result", Level: Must,
		Says:   "the exit code is 0 after a success, and another one after a failure",
		Checks: []string{"basic/attach", "add/error-form", "add/existing-interface", "limits/bad-ifname"},
	},
	{
		ID: "call-error", Binds: OfPlugin, Section: "2, Errors", Before: "Result", Level: Should, Early: Must,
		Says:   "a plugin that fails writes an error's JSON to standard output",
		Checks: []string{"add/error-form", "limits/bad-container-id", "errors/name", "errors/json"},
	},
	{
		ID: "call-required", Binds: OfPlugin, Section: "2, ADD", Before: "Parameters, ADD", Level: Must,
		Says:   "ADD needs CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS and CNI_IFNAME",
		Checks: []string{"errors/environment", "errors/command"},
	},
	{
		ID: "call-required-later", Binds: OfPlugin, Section: "2, DEL and CHECK", Before: "Parameters, DEL and CHECK", Level: Must,
		Says:   "DEL needs CNI_CONTAINERID and CNI_IFNAME, and CHECK needs CNI_NETNS as well",
		Checks: []string{"errors/environment-later"},
	},
	{
		ID: "call-required-gc", Binds: OfPlugin, Section: "2, GC", Since: "1.1.0", Level: Must,
		Says:     "GC needs CNI_COMMAND and CNI_PATH",
		Unjudged: "a plugin that delegates to nobody has no use for CNI_PATH, and nothing says that it refuses a GC without it",
	},
	{
		ID: "call-args", Binds: OfPlugin, Section: "2, ADD, DEL and CHECK", Level: Must,
		Says:   "CNI_ARGS is optional for ADD, DEL and CHECK",
		Checks: []string{"basic/attach", "check/well"},
	},
	{
		ID: "call-path", Binds: OfPlugin, Section: "2, ADD, DEL, CHECK and STATUS", Level: Must,
		Says:     "CNI_PATH is optional for ADD, DEL, CHECK and STATUS",
		Unjudged: "section 3 has runtimes set CNI_PATH always, so that the specification says both",
	},
}

// attachObligations are those of ADD and DEL in section 2.
var attachObligations = []Obligation{
	{
		ID: "add-interface", Binds: OfPlugin, Section: "2, ADD", Before: "CNI Plugin, Overview", Level: Should,
		Says:   "ADD makes the interface in the container, or adjusts it",
		Checks: []string{"basic/attach", "add/result", "basic/second-pod"},
	},
	{
		ID: "add-result", Binds: OfPlugin, Section: "2, ADD", Before: "Result", Level: Must,
		Says:   "an ADD that succeeds writes its result to standard output",
		Checks: []string{"basic/attach", "add/result"},
	},
	{
		ID: "add-prev-result", Binds: OfPlugin, Section: "2, ADD", Before: "Network Configuration Lists", Level: Must,
		Says:   "a plugin that is given a prevResult passes it on, or changes it",
		Checks: []string{"add/prev-result"},
	},
	{
		ID: "add-existing-interface", Binds: OfPlugin, Section: "2, ADD", Before: "Result", Level: Must,
		Says:   "ADD fails if the container has an interface of that name",
		Checks: []string{"add/existing-interface"},
	},
	{
		ID: "add-once", Binds: OfRuntime, Section: "2, ADD", Before: "General considerations", Level: Should, Early: Must,
		Says: "ADD comes once for a container and an interface name, until a DEL",
	},
	{
		// 1.0.0 and 1.1.0 only say when a runtime may add a container again: that plugins should take it follows.
		ID: "add-again", Binds: OfPlugin, Section: "2, ADD", Before: "General considerations", Level: Should,
		Says:   "a container can be added several times under several interface names, each an attachment of its own, and again after DEL",
		Checks: []string{"parallel/same-pod", "leak/same-id"},
	},
	{
		ID: "state-key", Binds: OfPlugin, Before: "General considerations", Level: Should,
		Says:   "what a plugin stores of an attachment has the network's name, the container's id and the interface's name for its key",
		Checks: []string{"parallel/same-pod", "limits/container-id", "gc/other-network"},
	},
	{
		ID: "del-undo", Binds: OfPlugin, Section: "2, DEL", Before: "Parameters, DEL", Level: Should,
		Says:   "DEL deletes the interface, and undoes what ADD has done",
		Checks: []string{"leak/add-del", "leak/same-id", "leak/del-only", "leak/churn", "add/failed-leaves-nothing", "limits/container-id"},
	},
	{
		ID: "del-prev-result", Binds: OfRuntime, Section: "2, DEL", Before: "Parameters, DEL", Level: Must,
		Says: "DEL is given the last ADD's result as prevResult",
	},
	{
		ID: "del-parameters", Binds: OfRuntime, Before: "Parameters, DEL", Level: Should,
		Says: "all parameters of DEL are those of its ADD",
	},
	{
		ID: "del-no-prev-result", Binds: OfPlugin, Section: "2, DEL", Before: "Parameters, DEL", Level: Should,
		Says:   "DEL succeeds without prevResult",
		Checks: []string{"del/without-prev-result", "chain/failed-add"},
	},
	{
		ID: "del-best-effort", Binds: OfPlugin, Section: "2, DEL", Before: "Parameters, DEL", Level: Should,
		Says: "DEL succeeds, and cleans up as far as it can, even if resources, state or the network namespace are missing, unless its IPAM cannot do without the namespace",
		Checks: []string{"del/netns-gone", "del/after-failed-add", "leak/netns-gone", "leak/kill-add", "leak/kill-del", "leak/daemon", "leak/reboot",
			"chain/failed-add", "add/failed-leaves-nothing", "chain/del-one", "del/delegated"},
	},
	{
		ID: "del-repeated", Binds: OfPlugin, Section: "2, DEL", Before: "General considerations", Level: Must, Early: Should,
		Says:   "DEL succeeds several times, and if what it would delete is missing",
		Checks: []string{"del/idempotent", "del/never-added"},
	},
	{
		ID: "del-no-netns", Binds: OfPlugin, Section: "2, DEL", Before: "Parameters, DEL", Level: Should,
		Says:   "DEL works without CNI_NETNS",
		Checks: []string{"del/without-netns", "leak/no-netns", "leak/churn-bare"},
	},
}
