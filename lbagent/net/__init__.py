"""The node's network, read by netlink: devices, addresses, routes, neighbours, and the paths to backends.

`netlink.py` follows the kernel, `snapshot.py` has the records, `paths.py` the rules, `neighbours.py` has the kernel keep neighbours
resolved. Import the modules. No map is read or written here: next hops and devices of the programs are in `targets/bpf`. Attaching
programs is in `bpf/load`; ARP and NDP for announced addresses are in `announce/l2`.
"""
