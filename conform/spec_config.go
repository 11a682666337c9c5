package conform

// configObligations are those of section 1, on the configuration's format.
var configObligations = []Obligation{
	{
		ID: "config-version", Binds: OfConfig, Section: "1, Configuration format", Before: "Network Configuration", Level: Must,
		Says: "a list says by cniVersion which version it, and each configuration in it, is written in",
	},
	{
		ID: "config-name", Binds: OfPlugin, Section: "1, Configuration format", Before: "Network Configuration", Level: Must,
		Says:   "a network's name begins with a letter or a digit, and goes on with these, underscores, dots and hyphens",
		Checks: []string{"limits/network-name", "errors/name"},
	},
	{
		ID: "config-disable-check", Binds: OfRuntime, Section: "1, Configuration format", Before: "Network Configuration Lists", Level: Must,
		Says: "CHECK is not called for a list with disableCheck",
	},
	{
		ID: "config-disable-gc", Binds: OfRuntime, Section: "1, Configuration format", Since: "1.1.0", Level: Must,
		Says: "GC is not called for a list with disableGC",
	},
	{
		ID: "config-inlined", Binds: OfRuntime, Section: "1, Configuration format", Since: "1.1.0", Level: Must,
		Says: "plugins from other sources are appended to the list, unless it has loadOnlyInlinedPlugins",
	},
	{
		ID: "config-inlined-needs-plugins", Binds: OfConfig, Section: "1, Configuration format", Since: "1.1.0", Level: Must,
		Says: "loadOnlyInlinedPlugins is false in a list without plugins",
	},
	{
		ID: "config-aggregated", Binds: OfRuntime, Section: "1, Plugin configuration objects", Since: "1.1.0", Level: Must,
		Says: "each configuration that was found belongs to one list, is validated, and its plugin is called",
	},
	{
		ID: "config-pass-through", Binds: OfRuntime, Section: "1, Plugin configuration objects", Level: Must,
		Says: "keys that the specification does not define reach the plugin as they are",
	},
	{
		ID: "config-type", Binds: OfConfig, Section: "1, Plugin configuration objects", Before: "Network Configuration", Level: Must,
		Says: "type is there, is the name of the plugin's program, and can be a file's name",
	},
	{
		ID: "config-reserved", Binds: OfConfig, Section: "1, Plugin configuration objects", Level: Should,
		Says: "a list does not set the keys that runtimes set: runtimeConfig, args, and those that begin with cni.dev/",
	},
	{
		ID: "config-dns", Binds: OfPlugin, Section: "1, Plugin configuration objects", Before: "Network Configuration", Level: Should,
		Says:   "a plugin that uses the list's dns takes it as it is meant: nameservers and search domains in the order of their priority",
		Checks: []string{"keys/dns"},
	},
	{
		ID: "config-dns-domain", Binds: OfPlugin, Section: "1, Plugin configuration objects", Before: "Network Configuration", Level: Should,
		Says:     "a plugin that uses the list's dns takes its domain for the local one, and its options for those of the resolver",
		Unjudged: "a plugin may take a part of dns, and what a resolver makes of it is the runtime's affair",
	},
	{
		ID: "config-ipam", Binds: OfPlugin, Section: "1, Plugin configuration objects", Before: "Network Configuration", Level: Should,
		Says:   "a plugin that uses ipam calls the program that ipam's type names",
		Checks: []string{"add/delegated", "status/delegated", "gc/delegated"},
	},
	{
		ID: "config-ip-masq", Binds: OfPlugin, Section: "1, Plugin configuration objects", Before: "Network Configuration", Level: Should,
		Says:     "a plugin that uses ipMasq masquerades what the container sends to elsewhere",
		Unjudged: "the suite does not know which packets a plugin's network means by elsewhere, and how it masquerades them",
	},
	{
		ID: "config-args", Binds: OfPlugin, Before: "Network Configuration", Level: Should,
		Says:   "a plugin ignores what it does not understand in args",
		Checks: []string{"keys/args"},
	},
	{
		ID: "config-other-keys", Binds: OfPlugin, Section: "1, Plugin configuration objects", Before: "Network Configuration", Level: Must,
		Says:   "a plugin may refuse a key that it does not know: then it does so by an error",
		Checks: []string{"keys/unknown"},
	},
	{
		ID: "version-select", Binds: OfRuntime, Section: "1, Version considerations", Since: "1.1.0", Level: Must,
		Says: "the highest version is taken that the list has in cniVersion and cniVersions",
	},
	{
		ID: "version-tell", Binds: OfPlugin, Section: "1, Version considerations", Before: "Parameters, VERSION", Level: Must,
		Says:   "a plugin tells by VERSION which versions it supports, also to a runtime of another version",
		Checks: []string{"version/answer", "version/newer"},
	},
}
