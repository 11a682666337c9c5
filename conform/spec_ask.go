package conform

// checkObligations are those of CHECK in section 2.
var checkObligations = []Obligation{
	{
		ID: "check-prev-result", Binds: OfPlugin, Section: "2, CHECK", Before: "Parameters, CHECK", Level: Must,
		Says:   "CHECK expects the interfaces and addresses of prevResult",
		Checks: []string{"check/prev-result"},
	},
	{
		ID: "check-later-plugin", Binds: OfPlugin, Section: "2, CHECK", Before: "Parameters, CHECK", Level: Must,
		Says:   "CHECK allows for what later plugins of the list have changed",
		Checks: []string{"chain/check"},
	},
	{
		ID: "check-missing", Binds: OfPlugin, Section: "2, CHECK", Before: "Parameters, CHECK", Level: Should,
		Says:   "CHECK fails if an interface, an address or a route is missing that the plugin made and prevResult lists",
		Checks: []string{"check/link-gone", "check/address-gone", "check/route-gone"},
	},
	{
		ID: "check-untracked", Binds: OfPlugin, Section: "2, CHECK", Before: "Parameters, CHECK", Level: Should,
		Says:     "CHECK fails if something else is missing: rules of a firewall, limits of bandwidth, reserved addresses, a daemon",
		Unjudged: "what of these belongs to a plugin's container only the plugin knows; check/delegated judges what an IPAM plugin says of the reservation",
	},
	{
		ID: "check-unreachable", Binds: OfPlugin, Section: "2, CHECK", Before: "Parameters, CHECK", Level: Should,
		Says:     "CHECK fails if the plugin knows that the container cannot be reached",
		Unjudged: "what a plugin knows nobody else can tell",
	},
	{
		ID: "check-at-once", Binds: OfPlugin, Section: "2, CHECK", Before: "Parameters, CHECK", Level: Must,
		Says:   "CHECK succeeds immediately after ADD",
		Checks: []string{"check/well"},
	},
	{
		ID: "check-delegated", Binds: OfPlugin, Section: "2, CHECK", Before: "Parameters, CHECK", Level: Should,
		Says:   "CHECK calls CHECK of the plugins that the plugin delegates to, and passes their errors on",
		Checks: []string{"check/delegated"},
	},
	{
		ID: "check-output", Binds: OfPlugin, Before: "Parameters, CHECK", Level: Must,
		Says:   "a CHECK that succeeds returns nothing",
		Checks: []string{"check/silent"},
	},
	{
		ID: "check-when", Binds: OfRuntime, Section: "2, CHECK", Before: "Parameters, CHECK", Level: Must,
		Says: "CHECK comes only between ADD and DEL, with the same parameters, and with the result of ADD as prevResult",
	},
}

// askObligations are those of STATUS, VERSION and GC in section 2.
var askObligations = []Obligation{
	{
		ID: "status-ready", Binds: OfPlugin, Section: "2, STATUS", Since: "1.1.0", Level: Must,
		Says:   "STATUS succeeds if the plugin is ready for ADD",
		Checks: []string{"status/available"},
	},
	{
		ID: "status-not-ready", Binds: OfPlugin, Section: "2, STATUS", Since: "1.1.0", Level: Must,
		Says:     "STATUS fails if the plugin knows that ADD would fail",
		Unjudged: "what a plugin knows nobody else can tell: the two examples that follow, which only should, are judged",
	},
	{
		ID: "status-daemon", Binds: OfPlugin, Section: "2, STATUS", Since: "1.1.0", Level: Should,
		Says:   "STATUS fails if something is away on which the plugin relies, such as a daemon",
		Checks: []string{"status/daemon"},
	},
	{
		ID: "status-exhausted", Binds: OfPlugin, Section: "2, STATUS", Since: "1.1.0", Level: Should,
		Says:   "STATUS fails if something limited is used up, such as addresses",
		Checks: []string{"status/exhausted"},
	},
	{
		ID: "status-codes", Binds: OfPlugin, Section: "2, STATUS", Since: "1.1.0", Level: Should,
		Says:     "the error of STATUS has code 50 or, if containers suffer, 51",
		Unjudged: "other codes are not ruled out: status/daemon notes them",
	},
	{
		ID: "status-not-needed", Binds: OfPlugin, Section: "2, STATUS", Since: "1.1.0", Level: Must,
		Says:   "a plugin works if nobody calls STATUS",
		Checks: []string{"basic/attach"},
	},
	{
		ID: "status-others", Binds: OfPlugin, Section: "2, STATUS", Since: "1.1.0", Level: Should,
		Says:   "after a STATUS that failed, a plugin expects other calls",
		Checks: []string{"status/exhausted", "status/daemon"},
	},
	{
		ID: "status-delegated", Binds: OfPlugin, Section: "2, STATUS", Since: "1.1.0", Level: Must,
		Says:   "STATUS calls STATUS of the plugins that ADD delegates to, and (it should) fails if theirs fails",
		Checks: []string{"status/delegated"},
	},
	{
		ID: "version-output", Binds: OfPlugin, Section: "2, VERSION", Before: "Parameters, VERSION", Level: Should,
		Says:   "VERSION writes a version result to standard output",
		Checks: []string{"version/answer", "version/newer"},
	},
	{
		ID: "version-environment", Binds: OfPlugin, Section: "2, VERSION", Before: "Parameters, VERSION", Level: Must,
		Says:   "VERSION needs no variable but CNI_COMMAND",
		Checks: []string{"version/bare"},
	},
	{
		ID: "gc-valid", Binds: OfPlugin, Section: "2, GC", Since: "1.1.0", Level: Must,
		Says:   "the attachments of this network that cni.dev/valid-attachments lists are still valid",
		Checks: []string{"gc/spares-listed", "gc/other-network", "gc/key"},
	},
	{
		ID: "gc-stale", Binds: OfPlugin, Section: "2, GC", Since: "1.1.0", Level: Should,
		Says:   "GC removes as much as it can of attachments that are not listed",
		Checks: []string{"gc/unlisted", "gc/empty-list"},
	},
	{
		ID: "gc-errors", Binds: OfPlugin, Section: "2, GC", Since: "1.1.0", Level: Should,
		Says:   "GC generally succeeds; after an error it goes on, and reports the error at the end",
		Checks: []string{"gc/nothing", "gc/continues"},
	},
	{
		ID: "gc-delegated", Binds: OfPlugin, Section: "2, GC", Since: "1.1.0", Level: Must,
		Says:   "GC is forwarded to the plugins that the plugin delegates to",
		Checks: []string{"gc/delegated"},
	},
	{
		ID: "gc-output", Binds: OfPlugin, Section: "2, GC", Since: "1.1.0", Level: Should,
		Says:   "a GC that succeeds writes nothing to standard output",
		Checks: []string{"gc/silent"},
	},
	{
		ID: "gc-no-del", Binds: OfRuntime, Section: "2, GC", Since: "1.1.0", Level: Must,
		Says: "GC takes no DEL's place",
	},
	{
		ID: "gc-input", Binds: OfRuntime, Section: "2, GC", Since: "1.1.0", Level: Must,
		Says: "GC is given the list of valid attachments, and CNI_PATH",
	},
}
