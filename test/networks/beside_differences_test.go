package networks

import "github.com/berth-net/berth/test/beside"

// differences are what docs/MULTUS.md lists.
var differences = []beside.Difference{
	{Field: "order of CHECK", Why: "Berth checks each network that the pod has; Multus checks those that the configuration's delegates name, and none that a definition does"},
	{Field: "stdin of CHECK", Why: "as the order of CHECK"},
	{Field: "CNI_ARGS of CHECK", Why: "as the order of CHECK"},
	{Pods: []string{"another default", "default by JSON", "default of 0.4.0"}, Field: "answer to CHECK", Why: "Multus checks the configuration's first delegate although the pod has another default network, and says that it is not there"},

	{Pods: []string{"another default", "cluster", "cluster asks", "for each pod", "default-route taken", "isolated global", "system", "system of its"}, Field: "status", Why: beside.NilGateway},
	{Pods: []string{"cluster file", "cluster path", "default of 0.4.0", "version 0.3.1", "version 0.4.0", "version 1.1.0"}, Field: "result", Why: "Multus answers in the version of the default network's configuration; Berth answers in that of its own, as the CNI specification has it"},

	{Pods: []string{"mac"}, Field: "CNI_ARGS of ADD", Why: "Multus also passes a MAC that the pod asks for in CNI_ARGS, which it calls deprecated; Berth passes it as the capability alone"},
	{Pods: []string{"mac"}, Field: "stdin of ADD", Why: "as CNI_ARGS of ADD: the plugin bridge reads the MAC there, so that tuning, which declares the capability, finds it set already"},
	{Pods: []string{"ips"}, Field: "CNI_ARGS of ADD", Why: "as mac: Multus also passes addresses in CNI_ARGS"},
	{Pods: []string{"bandwidth"}, Field: "stdin of DEL", Why: "Multus does not keep the bandwidth that the pod has asked for, and leaves it out at DEL; Berth executes DEL with what ADD had"},
	{Pods: []string{"cluster lists"}, Field: "stdin of DEL", Why: "of a list that a path names Multus keeps the keys alone that it knows itself, so that DEL lacks the others (here host-local's subnet); Berth keeps the configuration"},
	{Pods: []string{"cluster lists"}, Field: "answer to DEL", Why: "as stdin of DEL: Multus fails"},
	{Pods: []string{"cluster lists"}, Field: "left", Why: "as stdin of DEL: Multus leaves the address, and the interface"},

	{Pods: []string{"default-route taken"}, Field: "pod", Why: beside.DefaultRoute},
	{Pods: []string{"default-route", "default-route taken"}, Field: "stdin of DEL", Why: "Multus changes default routes in the results that it keeps; Berth's DEL gives plugins the result of their ADD, as the CNI specification has it"},

	{Pods: []string{"mac without the capability", "ips without the capability"}, Field: "refused", Why: beside.NoCapability},
	{Pods: []string{"runtimeConfig"}, Field: "refused", Why: "Multus passes the runtime's runtimeConfig to each network that declares the capability, so that two get one address; Berth passes it to the default network alone"},
	{Pods: []string{"unknown key"}, Field: "refused", Why: beside.UnknownKey},
}
