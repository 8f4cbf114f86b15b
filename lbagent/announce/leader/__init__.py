"""Which node leads for an address: the Leases of nodes and addresses, the preferred order of nodes, and the previous leaders.

`lease_election.py` reads and writes Leases; the other modules are pure. Import the modules. What a leader sends is not here
(`announce/l2`); Leases as API objects are in `kube/leases.py`.
"""
