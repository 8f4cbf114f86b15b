"""One reason code for each verdict: the only table. C gets it as REASON_* defines, metrics and docs by text.

The number is the index into lb_metrics (packets, bytes), so it is part of the pinned layout: append, never renumber,
and never give a number again (72 was one that nothing counted).
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Why a packet got its verdict. Names are lower-cased for metrics labels and the command line."""

    NONE = 0  # never counted
    # forwarded
    FWD_ESTABLISHED = 1  # flow table hit, sent to its backend
    FWD_NEW = 2  # new flow, backend selected
    FWD_REPLY = 3  # reply translated back to the frontend
    FWD_LOCAL = 4  # rewritten and handed up to a backend of this node
    FWD_ICMP = 5  # ICMP error about a flow, translated
    FWD_RESELECTED = 6  # flow moved because its backend is gone or takes no new flows
    FWD_SPILL = 7  # flow kept in the overflow table
    FWD_NO_STATE = 8  # forwarded by selection alone: the flow table had no room for a SYN
    FWD_FRAGMENT = 9  # later fragment of a known datagram
    # passed untouched
    PASS_NOT_SERVICE = 16  # counted only where the prefilter took the packet for one of a service
    PASS_UNSUPPORTED = 17  # protocol or header we do not translate
    PASS_TTL = 18  # TTL 1: the stack answers
    PASS_MTU = 19  # larger than the way out, DF clear: the stack fragments
    # answered by the program
    REJECT_NO_BACKEND = 32
    REJECT_BACKEND_GONE = 33
    REJECT_UNDEFINED_PORT = 34
    ANSWER_TOO_BIG = 35
    ANSWER_TTL = 36
    # dropped
    DROP_NO_BACKEND = 64  # reject rate exceeded
    DROP_SOURCE_RANGE = 65
    DROP_NO_LOCAL_BACKEND = 66  # Local policy: no backend on this node, some on other nodes
    DROP_NOT_ROUTABLE = 67  # ClusterIP from outside with --external-clusterip off
    DROP_SNAT_EXHAUSTED = 68  # no free SNAT port
    DROP_RACE = 69  # two CPUs inserted into one bucket twice in a row
    DROP_NO_NEIGHBOR = 70  # no next hop and the FIB has none either
    DROP_FRAGMENT = 71  # later fragment of an unknown datagram
    DROP_MISSING_BACKEND = 73  # a slot pointed at nothing: must stay 0
    DROP_MALFORMED = 74  # a source that is no host: 0/8, 127/8, ::, ::1, a group
    DROP_INTERNAL = 75


REASON_SLOTS = 256  # first entries of lb_metrics; services and backends follow


def label(reason: Reason) -> str:
    """Return the text used in metrics, events and the command line."""
    return reason.name.lower()
