conf='{"cniVersion": "1.1.0", "name": "n", "type": "bridge"}'
prev=$(cni ADD bridge "$conf")
cni CHECK bridge "$(after "$conf" "$prev")" | grep 'no plugin name provided'
