"""Announces the addresses of Services: `l2` by ARP and NDP with one leader for each address, `bgp` by routes, `leader` elects.

`announcer.py` joins them and writes the addresses that the data plane answers for; `vip_rows.py` makes the rows of `lbagent vip`.
The agent imports these two and `bgp/bgp_routes.py`. Not here: which address a Service gets (`pools`, `cloud`), and how the programs
answer (`bpf/include`).
"""
