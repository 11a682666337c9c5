conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
cni ADD bridge "$conf"
ip netns delete pod; touch /run/netns/pod
cni DEL bridge "$conf" | grep 'unknown FS magic' && ls /var/lib/cni/networks/n/10.89.0.2
