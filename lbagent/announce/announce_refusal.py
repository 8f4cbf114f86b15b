"""Why this node does not announce an address: each reason with its sentence and its remedy. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from msgspec import Struct

_CLEAR_STATE = "see `lbagent svc get` for the states of the backends, and `lbagent backend clear-state`"


class RefusalReason(StrEnum):
    """A reason. Its value is the sentence; `{}` stands for the detail of a refusal. `advice` is '' where the detail contains it."""

    advice: str

    def __new__(cls, text: str, advice: str) -> Self:
        """Store the advice with the sentence."""
        member = str.__new__(cls, text)
        member._value_ = text
        member.advice = advice
        return member

    # of the node
    EXCLUDED = (
        "the node has the label node.kubernetes.io/exclude-from-external-load-balancers",
        "remove the label if the node should get traffic",
    )
    LEAVES = "the node is being removed", "the other nodes announce its addresses; nothing to do"
    SHUTS_DOWN = (
        "the node is shutting down",
        "the other nodes announce its addresses; this node announces again when it is ready",
    )
    CORDONED = "the node is cordoned", "kubectl uncordon NODE, or leave it to the other nodes"
    NOT_SELECTED = (
        "l2.nodeSelector does not match the node's labels",
        "give the node the labels, or change l2.nodeSelector",
    )
    # of its devices
    OWN_ADDRESS = (
        "a device of this node has the address itself",
        "remove the address from the device, or from the pool",
    )
    NO_NAMED_DEVICE = "no device of l2.devices exists", "see `ip link` and l2.devices"
    NO_NETWORK = (
        "no device has an address of its network",
        "give a device an address of this network, name devices in l2.devices, or announce by BGP",
    )
    NO_PROGRAMS = "no programs are on {}; name it with --device", "add --device, and see `lbagent status`"
    NO_CARRIER = (
        "{} has no carrier",
        "see `ip link`: set the device up, and check its cable and the port of the switch",
    )
    # of its endpoints
    NO_ENDPOINT_HERE = (
        "policy Local, and no ready endpoint is on this node",
        "see `kubectl get endpointslices` for where the endpoints are; policy Cluster needs none here",
    )
    NOT_SERVED_HERE = (
        "policy Local, and the programs of this node send no new connections to the endpoints here",
        _CLEAR_STATE,
    )
    NO_ENDPOINT = (
        "no endpoint of its Services is ready, so the route is withdrawn",
        "see why no Pod of the Service is ready",
    )
    NOT_SERVED = (
        "the programs of this node send no new connections to its endpoints, so the route is withdrawn",
        _CLEAR_STATE,
    )
    # of the API server and of BGP
    LEASES_UNKNOWN = (
        "the API server does not answer; only the current leader keeps announcing{}",
        "check that the API server is reachable; see deploy/cloud/announce.yaml for the rights",
    )
    NO_SPEAKER = "no BGP speaker runs on this node", "see `lbagent status`"
    NO_SESSION = "{}", ""  # the speaker's sentence contains the remedy


class AnnounceRefusal(Struct, frozen=True):
    """A reason with its detail: the names of devices, the text of a failure."""

    reason: RefusalReason
    detail: str = ""

    def __str__(self) -> str:
        """Return the sentence."""
        return self.reason.value.replace("{}", self.detail)
