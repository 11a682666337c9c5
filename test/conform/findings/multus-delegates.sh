conf='{"cniVersion": "1.0.0", "name": "n", "type": "multus", "delegates": [{"cniVersion": "1.0.0", "name": "one", "type": "ptp",
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}]}'
CNI_NETNS=/run/netns/nowhere cni ADD multus "$conf"
ls /var/lib/cni/multus/c1
