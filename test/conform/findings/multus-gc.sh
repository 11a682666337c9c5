conf='{"cniVersion": "1.1.0", "name": "n", "type": "multus", "cni.dev/valid-attachments": [], "delegates": [{"cniVersion": "1.1.0",
 "name": "one", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}]}'
cni GC multus "$conf" | grep 'gather valid attachments: open /var/lib/cni/multus/results: no such file'
