"""`lbagent explain`: the question about packets, the answer for each, and what a data plane that can answer has.

The words of verdicts, steps and their results are contracts (docs/operations.md, "Why did this packet go there").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from lbagent.model.state import State


class PacketQuestion(Struct, kw_only=True, forbid_unknown_fields=True):
    """One packet: either its addresses, or its frame as it arrives (hexadecimal digits)."""

    source: str = ""  # ADDRESS:PORT
    destination: str = ""  # ADDRESS:PORT
    protocol: str = "tcp"
    flags: str = "S"  # TCP: letters of SFRPAU
    length: int = 0  # bytes of the frame; 0: no payload
    frame: str = ""


class ManifestText(Struct, forbid_unknown_fields=True):
    """A file of manifests."""

    name: str
    text: str


class ExplainRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/explain. `device` and `hook` '': those by which such a packet comes in."""

    command: ClassVar[str] = "explain"
    packets: list[PacketQuestion]
    device: str = ""
    hook: str = ""  # xdp, tc_ingress, tc_egress
    manifests: list[ManifestText] | None = None  # answer under these, instead of what is in force


class Packet(Struct):
    """The packet that was explained. Ports are null where the frame has none."""

    family: str  # IPv4, IPv6; '' for a frame of neither
    protocol: str
    source: str
    destination: str
    flags: str  # TCP
    length: int  # bytes of the frame
    device: str
    hook: str


class Step(Struct):
    """One step. `map`, `key`, `entry`: what was looked up, and what was found there."""

    step: str
    result: str
    text: str
    map: str | None = None
    key: str | None = None
    entry: str | None = None


class Output(Struct):
    """The packet that leaves, and the device; '': it goes up to this node's own stack."""

    source: str
    destination: str
    device: str


class Explanation(Struct):
    """What happens to a packet, and why."""

    packet: Packet
    steps: list[Step]
    verdict: str  # forward, local, answer, drop, pass
    action: str  # of the program, as the kernel names it; '' where no program of lbagent sees the packet
    reason: str | None  # under which it is counted (maps/reasons.py); null: it is not counted
    service: str | None  # NAMESPACE/NAME
    frontend: str | None
    backend: str | None
    output: Output | None  # null: nothing leaves
    generation: int
    advice: str = ""  # what to do about it


@runtime_checkable
class ExplainingPlane(Protocol):
    """A data plane that can explain."""

    async def explain(self, request: ExplainRequest, state: State | None) -> Sequence[Explanation]:
        """Return what would happen to each packet, under a State without ids instead of the one in force.

        Changes nothing. Raises ConfigError, NotFound, LbError.
        """
