cni ADD bridge '{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "isGateway": true, "ipam": {"type": "nowhere"}}'
conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
cni DEL bridge "$conf"
cni ADD bridge "$conf" | grep "could not set bridge's mac"
