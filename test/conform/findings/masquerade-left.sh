conf='{"cniVersion": "1.1.0", "name": "n", "type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
prev=$(cni ADD ptp "$conf")
ip netns delete pod
cni DEL ptp "$(after "$conf" "$prev")"
iptables -t nat -S | grep CNI-
