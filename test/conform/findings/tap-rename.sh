conf='{"cniVersion": "1.1.0", "name": "n", "type": "tap", "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
ip -n pod link add eth0 type veth peer name other
cni ADD tap "$conf"
ip -n pod -details address show eth0 | tee /dev/stderr | grep -q veth && ip -n pod address show eth0 | grep 10.89.0.2
