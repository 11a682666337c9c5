conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge",
 "ipam": {"type": "host-local", "subnet": "10.89.0.0/24", "rangeStart": "10.89.0.2", "rangeEnd": "10.89.0.2"}}'
CNI_CONTAINERID=c2 cni ADD host-local "$conf" # another pod has the only address
cni ADD bridge "$conf"
ip -brief -n pod link | grep eth0
