package beside

// Reasons of differences that more than one comparison meets. docs/MULTUS.md says the same of them.
const (
	NilGateway   = `for a route without a gateway Multus lists the gateway "<nil>", which is no address; Berth lists none`
	DefaultRoute = "Multus looks for default routes without a destination, and its library gives them one by now: the first network's default route stays, and the one that " +
		"the pod has asked for is never made. Berth makes it, and keeps the others in tables of their interfaces, by which answers from their addresses still go"
	NoCapability = "Multus ignores what no plugin declares, or passes it in CNI_ARGS, which some plugins read; Berth refuses it, so that no pod runs without the address that it has asked for"
	UnknownKey   = "Multus ignores keys of the annotation that it does not know, misspelt ones among them; Berth names them"
)
