mkdir /run/bin; printf '#!/bin/sh\necho "$CNI_COMMAND" >>/run/spy; exit 1\n' >/run/bin/spy; chmod +x /run/bin/spy
CNI_PATH=/run/bin:$CNI_PATH
cni ADD bridge '{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "ipam": {"type": "spy"}}'
grep ADD /run/spy && ! grep DEL /run/spy
