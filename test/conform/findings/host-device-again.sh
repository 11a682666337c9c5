conf='{"cniVersion": "1.1.0", "name": "n", "type": "host-device", "device": "eth1",
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
ip link add eth1 type veth peer name other
cni ADD host-device "$conf" && cni DEL host-device "$conf"
cni DEL host-device "$conf" | grep 'Link not found'
