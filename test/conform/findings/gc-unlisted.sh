conf='{"cniVersion": "1.1.0", "name": "n", "type": "ptp", "ipMasq": true,
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}, "cni.dev/valid-attachments": []}'
cni ADD ptp "$conf"
cni GC ptp "$conf" && cni GC host-local "$conf"
ls /var/lib/cni/networks/n/10.89.0.2 && iptables -t nat -S | grep CNI-
