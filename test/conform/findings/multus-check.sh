conf='{"cniVersion": "1.0.0", "name": "n", "type": "multus", "delegates": [{"cniVersion": "1.0.0", "name": "one", "type": "ptp",
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}]}'
prev=$(cni ADD multus "$conf")
cni CHECK multus "$(after "$conf" "${prev//10.89.0.2/10.89.0.77}")" && ! ip -n pod address show eth0 | grep 10.89.0.77
