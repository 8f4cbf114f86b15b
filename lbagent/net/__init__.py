"""The node's network, read by netlink: devices, addresses, routes, neighbours, and the paths to backends.

`netlink.py` follows the kernel, `snapshot.py` has the records, `paths.py` the rules. Import the modules. Attaching programs to
devices is in `bpf/load`; ARP and NDP for announced addresses are in `announce/l2`.
"""
