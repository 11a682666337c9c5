conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}'
firewall='{"cniVersion": "1.1.0", "name": "n", "type": "firewall", "backend": "iptables"}'
prev=$(cni ADD bridge "$conf")
cni ADD firewall "$(after "$firewall" "$prev")"
cni DEL firewall "$firewall" && cni DEL bridge "$conf"
iptables -S CNI-FORWARD | grep 10.89.0.2
