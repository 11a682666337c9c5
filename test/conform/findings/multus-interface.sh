conf='{"cniVersion": "1.0.0", "name": "n", "type": "multus", "delegates": [{"cniVersion": "1.0.0", "name": "one", "type": "ptp",
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}]}'
ip -n pod link add eth0 type veth peer name other
cni ADD multus "$conf" | grep 'already exists' && ! ip -n pod link show eth0
