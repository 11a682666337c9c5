conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "isGateway": true,
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}'
portmap='{"cniVersion": "1.1.0", "name": "n", "type": "portmap",
 "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "udp"}]}}'
ip netns add out; ip link add wan type veth peer name wan netns out; ip address add 192.0.2.1/24 dev wan
ip link set wan up; ip -n out address add 192.0.2.9/24 dev wan; ip -n out link set wan up
prev=$(cni ADD bridge "$conf"); cni ADD portmap "$(after "$portmap" "$prev")"
ip netns exec out bash -c 'echo hello >/dev/udp/192.0.2.1/8080'
cni DEL portmap "$(after "$portmap" "$prev")"; cni DEL bridge "$conf"; conntrack -L -p udp | grep 'src=10.89.0.2'
