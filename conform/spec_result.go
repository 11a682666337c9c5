package conform

// resultObligations are those of section 5 on what a success writes.
var resultObligations = []Obligation{
	{
		ID: "result-json", Binds: OfPlugin, Section: "5, Result Types", Before: "Result", Level: Should, Early: Must,
		Says:   "what a plugin writes to standard output is JSON",
		Checks: []string{"basic/attach", "add/result", "version/answer"},
	},
	{
		ID: "result-version", Binds: OfPlugin, Section: "5, ADD Success", Before: "Result", Level: Must,
		Says:   "the result of ADD is in the version of the request",
		Checks: []string{"add/result"},
	},
	{
		ID: "result-interfaces", Binds: OfPlugin, Section: "5, ADD Success", Before: "Result", Level: Must,
		Says:   "the result lists the interfaces that ADD made, also those on the node, with name and MAC",
		Checks: []string{"add/result"},
	},
	{
		ID: "result-sandbox", Binds: OfPlugin, Section: "5, ADD Success", Before: "Result", Level: Must,
		Says:   "an interface in the container has its sandbox, which should be CNI_NETNS, and one on the node has none",
		Checks: []string{"add/result"},
	},
	{
		ID: "result-details", Binds: OfPlugin, Section: "5, ADD Success", Since: "1.1.0", Level: Must,
		Says:   "mtu, socketPath and pciID of an interface are what they are",
		Checks: []string{"add/details"},
	},
	{
		ID: "result-ips", Binds: OfPlugin, Section: "5, ADD Success", Before: "Well-known Structures, IPs", Level: Must,
		Says:   "the result lists the addresses, with prefix length, gateway, and the index of an interface",
		Checks: []string{"add/result"},
	},
	{
		ID: "result-ip-version", Binds: OfPlugin, Before: "Well-known Structures, IPs", Level: Must,
		Says:   "each address has its family's version, 4 or 6",
		Checks: []string{"add/result"},
	},
	{
		ID: "result-routes", Binds: OfPlugin, Section: "5, ADD Success", Before: "Well-known Structures, Routes", Level: Must,
		Says:   "the result lists the routes that ADD made: destinations and gateways",
		Checks: []string{"add/result", "add/routes"},
	},
	{
		ID: "result-route-details", Binds: OfPlugin, Section: "5, ADD Success", Since: "1.1.0", Level: Must,
		Says:   "mtu, advmss, priority, table and scope of a route are what they are",
		Checks: []string{"add/details"},
	},
	{
		ID: "result-default-route", Binds: OfPlugin, Before: "IP Allocation, Notes", Level: Should,
		Says:   "a plugin is prepared to skip its default route, because another network may have one",
		Checks: []string{"add/default-route"},
	},
	{
		ID: "result-dns", Binds: OfPlugin, Section: "5, ADD Success", Before: "Well-known Structures, DNS", Level: Must,
		Says:   "the nameservers of the result are addresses",
		Checks: []string{"add/result"},
	},
	{
		ID: "result-dns-domains", Binds: OfPlugin, Section: "5, ADD Success", Before: "Well-known Structures, DNS", Level: Must,
		Says:     "domain, search and options of the result are the network's own",
		Unjudged: "what a network's are only the plugin knows: keys/dns judges the search domains of the list",
	},
	{
		ID: "result-prev-result", Binds: OfPlugin, Section: "5, ADD Success", Before: "Network Configuration Lists", Level: Must, Early: Should,
		Says:   "a plugin that was given a prevResult prints it, with its own changes",
		Checks: []string{"add/prev-result"},
	},
	{
		ID: "result-ipam", Binds: OfPlugin, Section: "5, Delegated plugins (IPAM)", Before: "IP Allocation", Level: Must, Early: Should,
		Says:   "the result of an IPAM plugin lists no interfaces, and its addresses have no index of one",
		Checks: []string{"add/delegated-result"},
	},
	{
		ID: "result-as-ipam", Binds: OfPlugin, Before: "Result", Level: Should,
		Says:   "addresses and dns of the result are those that the IPAM plugin returned",
		Checks: []string{"add/delegated-applied"},
	},
	{
		ID: "version-result", Binds: OfPlugin, Section: "5, VERSION Success", Before: "Parameters, VERSION", Level: Must,
		Says:   "the answer to VERSION has a cniVersion and the supported versions",
		Checks: []string{"version/answer"},
	},
	{
		ID: "version-result-echo", Binds: OfPlugin, Section: "5, VERSION Success", Level: Must,
		Says:   "the cniVersion of the answer to VERSION is that of the request",
		Checks: []string{"version/echo"},
	},
}

// errorObligations are those of section 5 on errors.
var errorObligations = []Obligation{
	{
		ID: "error-form", Binds: OfPlugin, Section: "5, Error", Before: "Result", Level: Should, Early: Must,
		Says:   "an error has a code and a message",
		Checks: []string{"add/error-form", "limits/bad-container-id", "errors/name"},
	},
	{
		ID: "error-version", Binds: OfPlugin, Section: "5, Error", Before: "Result", Level: Should, Early: Must,
		Says:   "an error says in which cniVersion it is written",
		Checks: []string{"add/error-version"},
	},
	{
		ID: "error-reserved", Binds: OfPlugin, Section: "5, Error", Before: "Well-known Error Codes", Level: Should, Early: Must,
		Says:   "codes below 100 mean what the specification says, and 100 and above are the plugin's own (later than 0.4.0 a breach is a note)",
		Checks: []string{"add/error-form"},
	},
	{
		ID: "error-1", Binds: OfPlugin, Section: "5, Error", Before: "Result", Level: Should,
		Says:   "code 1 is a version that the plugin does not support",
		Checks: []string{"errors/version"},
	},
	{
		ID: "error-2", Binds: OfPlugin, Section: "5, Error", Before: "Well-known Error Codes", Level: Must,
		Says:   "code 2 is a key that the plugin does not support, and the message has key and value",
		Checks: []string{"keys/unknown"},
	},
	{
		ID: "error-3", Binds: OfPlugin, Section: "5, Error", Before: "Well-known Error Codes", Level: Should,
		Says:     "code 3 is an unknown container, for which the runtime has nothing to clean up",
		Unjudged: "no call has to be answered with it; add/failed-undone looks for what a failed ADD left, whatever its code",
	},
	{
		ID: "error-4", Binds: OfPlugin, Section: "5, Error", Before: "Well-known Error Codes", Level: Must,
		Says:   "code 4 is a bad variable, and the message has the variable's name",
		Checks: []string{"errors/environment", "errors/command"},
	},
	{
		ID: "error-5", Binds: OfPlugin, Section: "5, Error", Before: "Well-known Error Codes", Level: Should,
		Says:     "code 5 is an error of input or output",
		Unjudged: "a runtime cannot have a plugin's reads and writes fail for certain",
	},
	{
		ID: "error-6", Binds: OfPlugin, Section: "5, Error", Before: "Well-known Error Codes", Level: Should,
		Says:   "code 6 is input that cannot be decoded",
		Checks: []string{"errors/json"},
	},
	{
		ID: "error-7", Binds: OfPlugin, Section: "5, Error", Before: "Well-known Error Codes", Level: Should,
		Says:     "code 7 is a bad configuration",
		Unjudged: "which validations a plugin makes is its own affair: errors/name notes another code",
	},
	{
		ID: "error-11", Binds: OfPlugin, Section: "5, Error", Before: "Well-known Error Codes", Level: Should,
		Says:     "code 11 is a condition that passes: the runtime may try again",
		Unjudged: "a plugin may use it, and nobody else knows what passes",
	},
	{
		ID: "error-50", Binds: OfPlugin, Section: "5, Error", Since: "1.1.0", Level: Should,
		Says:     "codes 50 and 51 are a plugin that is not available",
		Unjudged: "other codes are not ruled out: status/daemon notes them",
	},
}
