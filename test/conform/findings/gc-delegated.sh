mkdir /run/bin; printf '#!/bin/sh\necho "$CNI_COMMAND" >>/run/spy\n' >/run/bin/spy; chmod +x /run/bin/spy
CNI_PATH=/run/bin:$CNI_PATH
conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "ipam": {"type": "spy"}, "cni.dev/valid-attachments": []}'
cni GC bridge "$conf" && cni STATUS bridge "$conf"
cat /run/spy && ! grep GC /run/spy
