mkdir /run/flannel; cat >/run/flannel/subnet.env <<<$'FLANNEL_NETWORK=10.88.0.0/15\nFLANNEL_SUBNET=10.89.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true'
CNI_NETNS=/run/netns/nowhere cni ADD flannel '{"cniVersion": "1.0.0", "name": "n", "type": "flannel"}'
ls /var/lib/cni/flannel/c1
