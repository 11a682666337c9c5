conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "isGateway": true,
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}'
prev=$(cni ADD bridge "$conf")
prev=$(cni ADD sbr "$(after '{"cniVersion": "1.1.0", "name": "n", "type": "sbr"}' "$prev")")
cni CHECK bridge "$(after "$conf" "$prev")" | grep 'Failed to find Gateway'
