{{- /* The container that runs other CNI plugins for the agent. */ -}}
{{- define "berth.runner" -}}
# Runs the CNI plugins that make pods' further networks. When it ends, the plugins that run have 15 seconds to end, and then end with
# it; the agent repeats their DELs. It listens before it does anything else, and ends if it cannot: so there are no probes.
- name: berth-runner
  image: {{ include "berth.image" . }}
  {{- with .Values.image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  command:
  - berth-runner
  - --host
  {{- range .Values.networks.binDirs }}
  - --bin-dir={{ . }}
  {{- end }}
  {{- with .Values.networks.processes }}
  - --processes={{ . }}
  {{- end }}
  # Plugins look here for the node's iptables and the like. The image's own PATH has less.
  env:
  - {name: PATH, value: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
  # The kernel spares the processes of this pod when memory runs out (system-node-critical): the limit ends a plugin that takes all.
  resources: {{- toYaml .Values.networks.resources | nindent 4 }}
  # Not privileged. Plugins run as root in the mount namespace of process 1, and so with the node's own /proc/sys, /sys, /var/lib/cni
  # and programs, and in the node's network namespace, with these capabilities (deploy/berth-runner.service says what plugins do):
  # SYS_ADMIN, SYS_CHROOT and SYS_PTRACE for entering that mount namespace and pods' network namespaces, and for eBPF; NET_ADMIN,
  # NET_RAW and NET_BIND_SERVICE for links, rules, legacy iptables, ARP and DHCP; SYS_MODULE for modprobe; DAC_OVERRIDE,
  # DAC_READ_SEARCH, CHOWN, FOWNER, FSETID and MKNOD for files anywhere; SETUID, SETGID, SETPCAP and KILL for programs that
  # run as other users; IPC_LOCK, SYS_RESOURCE and SYS_NICE for the memory and limits of DPDK and eBPF. That is root on the node.
  # They open no devices but those that every container may open. No filter of system calls fits all plugins.
  securityContext:
    readOnlyRootFilesystem: true
    seccompProfile: {type: Unconfined}
    capabilities:
      drop: [ALL]
      add:
      - SYS_ADMIN
      - SYS_CHROOT
      - SYS_PTRACE
      - NET_ADMIN
      - NET_RAW
      - NET_BIND_SERVICE
      - SYS_MODULE
      - DAC_OVERRIDE
      - DAC_READ_SEARCH
      - CHOWN
      - FOWNER
      - FSETID
      - MKNOD
      - SETUID
      - SETGID
      - SETPCAP
      - KILL
      - IPC_LOCK
      - SYS_RESOURCE
      - SYS_NICE
  volumeMounts:
  - {name: run, mountPath: /run, mountPropagation: HostToContainer}   # its socket, and no copy that keeps a dead pod's namespace alive
{{- end }}
