conf='{"cniVersion": "1.1.0", "name": "n", "type": "sbr"}'
ip netns delete pod
cni DEL sbr "$conf" | grep 'unknown FS magic' && ls -l /run/netns/pod
