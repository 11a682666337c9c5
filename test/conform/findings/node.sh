mount -t tmpfs run /run; mount -t tmpfs lib /var/lib; ip link set lo up; ip netns add pod
export CNI_PATH=${CNI_PATH:-/opt/cni/bin} CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0
cni() { PATH=$CNI_PATH:$PATH CNI_COMMAND=$1 "$2" <<<"$3"; } # cni VERB PLUGIN CONFIGURATION
after() { echo "${1%\}}, \"prevResult\": $2}"; }            # after CONFIGURATION RESULT: a configuration with a prevResult
