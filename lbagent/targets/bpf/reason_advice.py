"""What a reason means for the packet that `explain` shows, and what to do about it. The table is maps/reasons.py."""

from __future__ import annotations

from lbagent.maps.reasons import Reason

_R = Reason
ADVICE: dict[Reason, str] = {
    _R.PASS_NOT_SERVICE: "no Service has this address, port and protocol; `lbagent svc list` shows those that there are",
    _R.PASS_UNSUPPORTED: "lbagent does not translate this protocol or header; the node's own stack gets the packet",
    _R.PASS_TTL: "its hop count ends here; the node's stack answers",
    _R.PASS_MTU: "it is too large for the way to its destination; tc_after_xdp fragments it",
    _R.PASS_NEIGHBOR: "XDP cannot send it; tc_after_xdp does",
    _R.PASS_FOREIGN_SOURCE: "it has a backend's address, but did not come by the device that leads to it; is a pod's device "
    "missing in --pod-device?",
    _R.PASS_NEW_FLOW: "with --new-flows syn a flow begins by a SYN, or by a datagram of no conversation that "
    "connection tracking has",
    _R.PASS_L7: "the L7 proxy of the Service gets it from tc_after_xdp",
    _R.REJECT_NO_BACKEND: "the Service has no backend that takes new flows; `lbagent backend list --service NAMESPACE/NAME` "
    "shows why",
    _R.REJECT_BACKEND_GONE: "the backend of this connection was removed; the client has to connect again",
    _R.REJECT_UNDEFINED_PORT: "this ClusterIP has no such port; `lbagent svc list` shows those that it has",
    _R.REJECT_SERVICE_GONE: "the Service of this flow was removed",
    _R.ANSWER_TOO_BIG: "it is larger than the MTU of the way to its backend; the answer has the size that fits",
    _R.ANSWER_TTL: "its hop count ends here; is there a loop of routes?",
    _R.REJECT_SCTP_MULTIHOMING: "its INIT lists another address than its source: packets between those would not pass this node; "
    "bind the client to one address",
    _R.DROP_NO_BACKEND: "an answer to it is not possible: its source cannot be answered, or --reject-rate is used up; of a ping: "
    "no frontend of the address takes new flows",
    _R.DROP_SOURCE_RANGE: "add the client to loadBalancerSourceRanges of the Service if it may use it",
    _R.DROP_NO_LOCAL_BACKEND: "the traffic policy is Local and no backend of the Service is on this node; send to a node that has "
    "one, or use policy Cluster; or a local redirect has no ready Pod here and drops then (lbagent.io/when-empty)",
    _R.DROP_NOT_ROUTABLE: "a ClusterIP is not served for clients outside the cluster; --external-clusterip serves it",
    _R.DROP_FLOW_LIMIT: "the Service, or each of its backends, has as many flows on this node as lbagent.io/max-flows or "
    "max-flows-per-backend allows",
    _R.DROP_FLOW_RATE: "more new flows came in a second than lbagent.io/new-flow-rate allows",
    _R.DROP_SCTP_UNKNOWN: "an association begins by an INIT, and this packet belongs to none that this node has; the client has to "
    "connect again",
    _R.DROP_SNAT_EXHAUSTED: "all SNAT ports to this backend are in use; widen --snat-ports, or add a --snat-address",
    _R.DROP_RACE: "other CPUs changed the same bucket of the flow table at the same time; the sender's next try succeeds",
    _R.DROP_NO_NEIGHBOR: "there is no way to the destination: look at its route and neighbour (`ip route get`, `ip neigh`) and at "
    "net.ipv4.ip_forward",
    _R.DROP_FRAGMENT: "its first fragment was not seen here; is every fragment routed to this node?",
    _R.DROP_MISSING_BACKEND: "a slot names a backend that the maps lack: `lbagent verify --repair`, and please report it",
    _R.DROP_MALFORMED: "its source cannot be a host, or its TCP header is too short",
    _R.DROP_INTERNAL: "a helper of the kernel failed; please report it",
    _R.DROP_REPLY_CLASH: "client and backend are processes of this node, or the client port uses two frontends of one backend; "
    "use --socket-lb",
    _R.DROP_FOREIGN_SOURCE: "with --strict-source a reply must come by the device of the route to its backend",
}
NO_SERVICE = (
    "no Service, SNAT port or backend of lbagent has one of its addresses: it passes untouched, and is not counted"
)
NO_PROXY = (
    "the Service has an L7 proxy (lbagent.io/l7-proxy-port), which has no listening socket there with IP_TRANSPARENT on this node; "
    "packets of this node's own processes do not reach it"
)
NO_PROGRAM = (
    "no program of lbagent is on this device (`lbagent status` lists those that have one): the packet passes unseen; of a bridge, "
    "name the port by which it comes with --device"
)
OTHER_MAC = "its destination MAC address is not the device's: it passes untouched"
