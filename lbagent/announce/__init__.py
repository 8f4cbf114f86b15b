"""Announces the addresses of Services: `l2` by ARP and NDP with one leader for each address, `bgp` by routes, `leader` elects.

`announcer.py` joins them and has the data plane answer; `vip_rows.py` makes what `lbagent vip` shows. The agent imports these two
and `bgp/bgp_routes.py`. Which address a Service gets is not here (`pools`, `cloud`), nor how the programs answer (`bpf/include`).
"""
