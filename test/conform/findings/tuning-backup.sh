conf='{"cniVersion": "1.1.0", "name": "n", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
tuning='{"cniVersion": "1.1.0", "name": "n", "type": "tuning", "mtu": 1400}'
prev=$(cni ADD ptp "$conf")
cni ADD tuning "$(after "$tuning" "$prev")"
ip netns delete pod
cni DEL tuning "$(after "$tuning" "$prev")" && cni DEL ptp "$conf"
ls /run/cni/tuning/c1_eth0.json
