package networks

// difference is a field that is not the same beside Multus, and why.
type difference struct {
	pods  []string // nil: some
	field string
	why   string
}

// differences are what docs/MULTUS.md lists.
var differences = []difference{
	{nil, "order of CHECK", "Berth checks each network that the pod has; Multus checks those that the configuration's delegates name, and none that a definition does"},
	{nil, "stdin of CHECK", "as the order of CHECK"},
	{nil, "CNI_ARGS of CHECK", "as the order of CHECK"},
	{[]string{"another default", "default by JSON", "default of 0.4.0"}, "answer to CHECK", "Multus checks the configuration's first delegate although the pod has another default network, and says that it is not there"},

	{[]string{"another default", "cluster", "cluster asks", "for each pod", "default-route taken", "isolated global", "system", "system of its"}, "status",
		"for a route without a gateway Multus lists the gateway \"<nil>\", which is no address; Berth lists none"},
	{[]string{"cluster file", "cluster path", "default of 0.4.0", "version 0.3.1", "version 0.4.0", "version 1.1.0"}, "result",
		"Multus answers in the version of the default network's configuration; Berth answers in that of its own, as the CNI specification has it"},

	{[]string{"mac"}, "CNI_ARGS of ADD", "Multus also passes a MAC that the pod asks for in CNI_ARGS, which it calls deprecated; Berth passes it as the capability alone"},
	{[]string{"mac"}, "stdin of ADD", "as CNI_ARGS of ADD: the plugin bridge reads the MAC there, so that tuning, which declares the capability, finds it set already"},
	{[]string{"ips"}, "CNI_ARGS of ADD", "as mac: Multus also passes addresses in CNI_ARGS"},
	{[]string{"bandwidth"}, "stdin of DEL", "Multus does not keep the bandwidth that the pod has asked for, and leaves it out at DEL; Berth executes DEL with what ADD had"},
	{[]string{"cluster lists"}, "stdin of DEL", "of a list that a path names Multus keeps the keys alone that it knows itself, so that DEL lacks the others (here host-local's subnet); Berth keeps the configuration"},
	{[]string{"cluster lists"}, "answer to DEL", "as stdin of DEL: Multus fails"},
	{[]string{"cluster lists"}, "left", "as stdin of DEL: Multus leaves the address, and the interface"},

	{[]string{"default-route taken"}, "pod", "Multus looks for default routes without a destination, and its library gives them one by now: the first network's default route stays, and the one that " +
		"the pod has asked for is never made. Berth makes it, and keeps the others in tables of their interfaces, by which answers from their addresses still go"},
	{[]string{"default-route", "default-route taken"}, "stdin of DEL", "Multus changes default routes in the results that it keeps; Berth's DEL gives plugins the result of their ADD, as the CNI specification has it"},

	{[]string{"mac without the capability", "ips without the capability"}, "refused", "Multus ignores what no plugin declares, or passes it in CNI_ARGS, which some plugins read; Berth refuses it, so that no pod runs without the address that it has asked for"},
	{[]string{"runtimeConfig"}, "refused", "Multus passes the runtime's runtimeConfig to each network that declares the capability, so that two get one address; Berth passes it to the default network alone"},
	{[]string{"unknown key"}, "refused", "Multus ignores keys of the annotation that it does not know, misspelt ones among them; Berth names them"},
}
