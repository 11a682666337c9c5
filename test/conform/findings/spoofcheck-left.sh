conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "macspoofchk": true,
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
cni ADD bridge "$conf"
ip netns delete pod
cni DEL bridge "$conf"
nft list ruleset bridge | grep macspoofchk-c1
