conf='{"cniVersion": "0.4.0", "name": "n", "type": "loopback"}'
ip -n pod link set lo up
cni ADD loopback "$conf" | tr -d " \n" | grep 127.0.0.1 | grep -v '"version"'
