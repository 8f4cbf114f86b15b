"""One reason code per verdict: the only table. C gets it as REASON_* defines, metrics and docs by text.

The number is the index into lb_metrics (packets, bytes), so it is part of the pinned layout: append, never renumber, and never
reuse a number (72 was one without a counter).
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """The reason of a packet's verdict. Names are lower-cased for metrics labels and the command line."""

    NONE = 0  # never counted
    # forwarded
    FWD_ESTABLISHED = 1  # flow table hit: sent to the flow's backend on another node
    FWD_NEW = 2  # new flow: a backend on another node was selected
    FWD_REPLY = 3  # reply translated back to the frontend
    FWD_LOCAL = 4  # rewritten and passed up with its source: to a backend of this node, or from a pod of this node
    FWD_ICMP = 5  # ICMP error about a flow, translated
    FWD_RESELECTED = 6  # flow moved: its backend is gone or takes no new flows, or is also used directly
    FWD_SPILL = 7  # the flow is in the spill map
    FWD_NO_STATE = 8  # forwarded by selection alone: the flow table had no room for a SYN
    FWD_FRAGMENT = 9  # later fragment of a known datagram
    FWD_SOCKET = 10  # no packet: a socket of the node got a backend's address (--socket-lb)
    FWD_FORMER_LEADER = 11  # no flow here and not a first packet: sent to the previous leader of the announced address
    FWD_L7 = 12  # given to the socket of the Service's L7 proxy on this node (l7-proxy-port)
    # passed untouched
    PASS_NOT_SERVICE = 16  # the prefilter matched, but its address has no service
    PASS_UNSUPPORTED = 17  # a protocol or header that the programs do not translate
    PASS_TTL = 18  # TTL 1: the kernel's stack answers
    PASS_MTU = 19  # too large for its path, DF clear: left to tc_after_xdp, which fragments it and counts it again
    PASS_NEIGHBOR = 20  # XDP cannot send it: left to tc_after_xdp, which counts it again
    PASS_FOREIGN_SOURCE = 22  # from a backend that sees its clients, but not by the device that leads to the backend
    PASS_NEW_FLOW = 23  # no flow; with --new-flows syn what is older than the programs is left to another proxy
    PASS_L7 = 24  # for the L7 proxy of the Service: XDP leaves it to tc_after_xdp, which counts it again
    # answered by the program
    REJECT_NO_BACKEND = 32  # the service has no backend: RST, ABORT (SCTP) or port unreachable
    REJECT_BACKEND_GONE = 33  # the backend of a TCP or SCTP flow was removed: RST, ABORT
    REJECT_UNDEFINED_PORT = 34  # a ClusterIP address without a service on that port: RST, ABORT or port unreachable
    ANSWER_TOO_BIG = 35  # larger than the MTU of its path: fragmentation needed, packet too big
    ANSWER_TTL = 36  # TTL or hop limit 1: time exceeded
    REJECT_SERVICE_GONE = 37  # the frontend of a flow was removed: RST, ABORT or port unreachable
    ANSWER_NEIGHBOR = 38  # ARP request or neighbor solicitation for an address that this node announces
    ANSWER_ECHO = 39  # a ping of an address that takes new flows: echo reply
    REJECT_SCTP_MULTIHOMING = 40  # an INIT of SCTP that lists an address beside its source: ABORT
    # dropped
    DROP_NO_BACKEND = 64  # the reject rate is used up for an answer; or a ping, and no frontend takes new flows
    DROP_SOURCE_RANGE = 65  # the source ranges of the service exclude the client
    DROP_NO_LOCAL_BACKEND = 66  # Local policy: backends on other nodes only; a local redirect that drops without a Pod
    DROP_NOT_ROUTABLE = 67  # ClusterIP from outside with --external-clusterip off
    DROP_SNAT_EXHAUSTED = 68  # no free SNAT port
    DROP_RACE = 69  # other CPUs inserted into the flow's bucket twice in a row
    DROP_NO_NEIGHBOR = 70  # no egress path: no route, forwarding is off, or a neighbour that does not answer
    DROP_FRAGMENT = 71  # later fragment of an unknown datagram to a ClusterIP
    DROP_MISSING_BACKEND = 73  # a slot refers to a backend that does not exist: must stay 0
    DROP_MALFORMED = 74  # the source cannot be a host (0/8, 127/8, ::, ::1, a group), or a TCP header is too short
    DROP_INTERNAL = 75  # a helper of the kernel or a tail call failed: must stay 0
    DROP_REPLY_CLASH = 76  # backend: a process of this node; client: the node, or one port through two frontends
    DROP_FOREIGN_SOURCE = 77  # --strict-source: from a remote backend's address, but not by the device of its route
    DROP_FLOW_LIMIT = 78  # max-flows, max-flows-per-backend: a new flow beyond; with over-limit: reject it is answered
    DROP_FLOW_RATE = 79  # new-flow-rate: a new flow beyond; with over-limit: reject it is answered
    DROP_SCTP_UNKNOWN = 80  # SCTP: no INIT, and of no flow; another backend would abort the association


class Event(IntEnum):
    """Counts beside the verdict of the packet that caused them, in the same part of lb_metrics as reasons."""

    SNAT_RECLAIMED = 128  # a SNAT port was taken from a flow that was not established, for a new one


# Drops by a service, a policy or a limit. Any other reason that grows is a condition of `lbagent status`.
INTENDED_DROPS = frozenset(
    {
        Reason.DROP_NO_BACKEND,
        Reason.DROP_SOURCE_RANGE,
        Reason.DROP_NO_LOCAL_BACKEND,
        Reason.DROP_NOT_ROUTABLE,
        Reason.DROP_MALFORMED,
        Reason.DROP_FLOW_LIMIT,
        Reason.DROP_FLOW_RATE,
        Reason.DROP_SCTP_UNKNOWN,
    }
)

REASON_SLOTS = 256  # first entries of lb_metrics; services and backends follow


def label(reason: Reason | Event) -> str:
    """Return the text used in metrics, events and the command line."""
    return reason.name.lower()


VERDICTS = ("forward", "local", "answer", "drop", "pass")


def verdict_of(reason: int) -> str:
    """Return the verdict of a reason, one of VERDICTS: its numbers are in groups."""
    if reason in (Reason.FWD_LOCAL, Reason.FWD_L7):
        return "local"
    if reason < Reason.PASS_NOT_SERVICE:
        return "forward"
    if reason < Reason.REJECT_NO_BACKEND:
        return "pass"
    return "answer" if reason < Reason.DROP_NO_BACKEND else "drop"
