conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "isGateway": true, "ipMasq": true,
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
cni ADD bridge "$conf"
CNI_IFNAME=eth1 cni ADD bridge "$conf"
CNI_IFNAME=eth1 cni DEL bridge "$conf" | grep 'CHAIN_DEL failed\|Too many links\|resource busy'
iptables -t nat -S | grep -e '-s 10.89.0.2/32 .* -j CNI-' && ! iptables -t nat -S | grep MASQUERADE # eth0's chain is empty
