"""Which nodes of the cluster are dead, found by the agents themselves: `node_liveness.py` joins the parts.

`observed_nodes.py` and `dead_nodes.py` decide, `echo_packet.py` has the datagrams, `live_leases.py` the Leases. Not here: which
endpoints take new flows then (`resolve`, `model/select.py`).
"""
