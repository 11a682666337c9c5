CNI_NETNS='' cni DEL sbr '{"cniVersion": "1.1.0", "name": "n", "type": "sbr"}' | grep 'no such file or directory'
