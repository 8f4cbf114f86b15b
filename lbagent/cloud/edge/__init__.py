"""Provider `edge`: port mappings at the router of a home or branch, by UPnP IGD or NAT-PMP.

Import `edge_provider.py` and `edge_plan.py`; `edge_rules.py` is pure. The protocols are in `protocols`, without Services.
"""
