package conform

// runObligations are those of section 3, on the order of calls. Most of them bind the runtime.
var runObligations = []Obligation{
	{
		ID: "run-namespace", Binds: OfRuntime, Section: "3, Lifecycle & Ordering", Before: "General considerations", Level: Must,
		Says: "a container's network namespace is made before any plugin is called, and the runtime ends it",
	},
	{
		ID: "run-serial", Binds: OfRuntime, Section: "3, Lifecycle & Ordering", Before: "General considerations", Level: Must,
		Says: "calls for the same container come one after the other, and GC (1.1.0) beside no ADD or DEL",
	},
	{
		ID: "run-parallel", Binds: OfPlugin, Section: "3, Lifecycle & Ordering", Before: "General considerations", Level: Must,
		Says:   "a plugin works for many containers, also at the same time, and locks what these share",
		Checks: []string{"parallel/pods", "basic/second-pod"},
	},
	{
		ID: "run-del-follows", Binds: OfRuntime, Section: "3, Lifecycle & Ordering", Before: "General considerations", Level: Must,
		Says: "a DEL follows each ADD, also one that failed",
	},
	{
		ID: "run-unchanged", Binds: OfRuntime, Section: "3, Lifecycle & Ordering", Before: "Parameters, DEL", Level: Should,
		Says: "the configuration stays the same between ADD and DEL, and between attachments",
	},
	{
		ID: "run-parameters", Binds: OfRuntime, Section: "3, Attachment Parameters", Before: "Parameters", Level: Must,
		Says: "id, namespace, interface name, arguments and CNI_PATH are set for each call of an attachment",
	},
	{
		ID: "run-add", Binds: OfRuntime, Section: "3, Adding an attachment", Before: "Network Configuration Lists", Level: Must,
		Says: "ADD is called in the order of the list, each with the result before it, up to an error; the last result is stored",
	},
	{
		ID: "run-del", Binds: OfRuntime, Section: "3, Deleting an attachment", Before: "Network Configuration Lists", Level: Must,
		Says: "DEL is called in reverse order, up to an error, with the result of ADD",
	},
	{
		ID: "run-check", Binds: OfRuntime, Section: "3, Checking an attachment", Before: "Network Configuration Lists", Level: Must,
		Says: "CHECK is called in the order of the list, up to an error, with the result and the parameters of ADD",
	},
	{
		ID: "run-gc", Binds: OfRuntime, Section: "3, Garbage-collecting a network", Since: "1.1.0", Level: Must,
		Says: "GC is called for all plugins, also after an error, and all errors are returned",
	},
	{
		ID: "run-derive", Binds: OfRuntime, Section: "3, Deriving request configuration", Before: "Network Configuration Lists", Level: Must,
		Says: "cniVersion, name, runtimeConfig and prevResult are set, capabilities goes, and all other keys stay as they are",
	},
	{
		ID: "run-capabilities", Binds: OfRuntime, Section: "3, Deriving runtimeConfig", Before: "Network Configuration Lists", Level: Should, Early: Must,
		Says: "runtimeConfig has the capability arguments that the plugin declares and the runtime provides",
	},
}

// delegateObligations are those of section 4, on plugins that call other plugins.
var delegateObligations = []Obligation{
	{
		ID: "ipam-answer", Binds: OfPlugin, Section: "4, Plugin Delegation", Before: "IP Allocation", Level: Must,
		Says:   "an IPAM plugin determines addresses, gateway and routes, and returns them to the plugin that called it",
		Checks: []string{"add/delegated-result"},
	},
	{
		ID: "delegate-environment", Binds: OfPlugin, Section: "4, Delegated Plugin protocol", Before: "IP Allocation", Level: Must,
		Says:   "a plugin that is delegated to gets all variables that the plugin got",
		Checks: []string{"add/delegated"},
	},
	{
		ID: "delegate-configuration", Binds: OfPlugin, Section: "4, Delegated Plugin protocol", Before: "IP Allocation", Level: Should,
		Says:   "a plugin that is delegated to gets the complete configuration that the plugin got",
		Checks: []string{"add/delegated"},
	},
	{
		ID: "delegate-path", Binds: OfPlugin, Section: "4, Delegated plugin execution procedure", Before: "IP Allocation", Level: Should,
		Says:   "a plugin looks in the folders of CNI_PATH for those that it delegates to",
		Checks: []string{"add/delegated", "status/delegated", "gc/delegated"},
	},
	{
		ID: "delegate-stderr", Binds: OfPlugin, Section: "4, Delegated plugin execution procedure", Level: Should,
		Says:   "what a delegate writes to standard error goes to the plugin's",
		Checks: []string{"add/delegated-stderr"},
	},
	{
		ID: "delegate-verbs", Binds: OfPlugin, Section: "4, Delegated plugin execution procedure", Level: Must,
		Says:   "a plugin's CHECK, DEL and (1.1.0) GC execute its delegates, and (it should) return their errors",
		Checks: []string{"check/delegated", "del/delegated", "gc/delegated"},
	},
	{
		ID: "delegate-failed-add", Binds: OfPlugin, Section: "4, Delegated plugin execution procedure", Level: Should,
		Says:   "if a delegate's ADD fails, the plugin calls its DEL before it fails itself",
		Checks: []string{"add/delegated-failed"},
	},
}
