cni VERSION bridge '{"cniVersion": "1.0.0"}' | grep '"cniVersion":"1.1.0"'
