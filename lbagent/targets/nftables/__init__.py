"""The data plane `nftables`: one table `inet lbagent`, with maps in place of a chain for each Service.

Packets. Only the first packet of a connection passes the chains (type nat); conntrack translates the rest, and the replies.

    prerouting ──> pod device? ──yes──> inside ──> internal4 (frontends with a row of their own for pods and this node)
        │                                 │ miss
        └──────────────> services <───────┘ <── output (the node's own processes)
                            │ frontends4: address . protocol . port ─> verdict
                            ├─> random4-3     numgen mod 3 gives the slot; backends4: address . protocol . port . slot ─> backend
                            ├─> maglev4-1021  jhash of the client's address and port gives the slot, in the same map
                            ├─> sticky4-...   first affinity4: client . frontend ─> backend, then the chain that it names
                            ├─> allow4-, deny4-...  first ranges4: frontend . client, then the chain that it names
                            ├─> refused       RST or ICMP port unreachable, limited; also a ClusterIP's ports without a Service
                            └─> drop          a Local policy without a local backend
    postrouting ─> one of our frontends? ─> sticky4 notes the client's backend ─> source4: hairpin, local, pod, else masquerade

A chain belongs to a number of slots, not to a Service: chains reached by a verdict map are validated with each transaction, so a
chain for each Service is quadratic in the kernel. Frontend and backend take one look-up each. No rule uses the packet's mark.

Parts. Pure: `map_specs` (which maps there are, keys and values as bytes), `statements` (a rule as text, as JSON and as the kernel's
expressions), `chains` (which rules there are), `service_elements` (the elements of one Service), `rule_set` (all of it, and the
difference of two), `nft_text` (the forms of `lbagent render`). The kernel: `nf_tables` (netlink, one transaction a batch),
`nft_table` (our table: reading, writing, comparing), `conntrack` (connections whose backend is gone). `nft_plane` is the DataPlane.

Transactions. What a Service needs is in one of them, so none is half there. A packet may meet the old verdict and the new
backends: the verdict is looked up first. Slots therefore appear with or before a verdict that uses them, and disappear in a
transaction of their own after it; chains without a use ten seconds later. A large load is cut between Services: each prefix is a
smaller rule set that is correct.

Netlink and not libnftables: libnftables lists the chains and sets of all tables before it adds a rule, and reads the whole map to
add an element. Nothing but the own table is ever listed here.
"""
