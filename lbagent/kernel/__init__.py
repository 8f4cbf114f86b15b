"""System calls and kernel facts, independent of load balancing: bpf(2), inotify, inet_diag, mounts, nftables, features, clocks.

Import the modules; they import nothing of lbagent but root modules. netlink is in `net`, maps by name are in `maps`.
"""
