"""The expected translation: the input frame with changed fields, and every checksum computed by scapy."""

from __future__ import annotations

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.sctp import SCTP

from lbagent.maps.reasons import Reason
from tests.packet import craft, wire
from tests.packet.craft import BACKEND_MAC, NODE2_MAC, NODE_MAC, ROUTER_MAC, Family
from tests.packet.plain_frames import plain
from tests.packet.world import TC_AFTER_XDP, TC_EGRESS, TC_INGRESS, XDP, BackendRow, Outcome, ServiceRow, World

TO_BACKEND = {"smac": NODE2_MAC, "dmac": BACKEND_MAC}
TO_CLIENT = {"smac": NODE_MAC, "dmac": ROUTER_MAC}
SNAT_PORTS = range(1024, 30000)


def translated(
    frame: bytes, *, src: str | None = None, sport: int | None = None, dst: str | None = None, dport: int | None = None,
    hop: int = 0, smac: str | None = None, dmac: str | None = None,
) -> bytes:  # fmt: skip
    """Return `frame` with these fields changed, `hop` taken from TTL or hop limit, and all checksums new."""
    packet = craft.decode(frame)
    ether, ip = packet[Ether], packet[IP] if IP in packet else packet[IPv6]
    ether.src, ether.dst = smac or ether.src, dmac or ether.dst
    ip.src, ip.dst = src or ip.src, dst or ip.dst
    if isinstance(ip, IP):
        ip.ttl -= hop
    else:
        ip.hlim -= hop
    ports = packet.getlayer(TCP) or packet.getlayer(UDP) or packet.getlayer(SCTP)
    if ports is not None:
        ports.sport = ports.sport if sport is None else sport
        ports.dport = ports.dport if dport is None else dport
    return craft.recomputed(packet)


def source(outcome: Outcome | bytes) -> tuple[str, int]:
    """Return the source address and port of a frame."""
    seen = parsed(outcome)
    return _text(seen.src), seen.sport


def destination(outcome: Outcome | bytes) -> tuple[str, int]:
    """Return the destination address and port of a frame."""
    seen = parsed(outcome)
    return _text(seen.dst), seen.dport


def parsed(outcome: Outcome | bytes) -> wire.Wire:
    """Parse a frame that must be readable and have right checksums."""
    data = outcome if isinstance(outcome, bytes) else outcome.packet
    seen = wire.parse(data)
    assert seen is not None, data.hex()
    assert not seen.bad, (seen.bad, craft.decode(data).summary())
    return seen


def forwarded_to(outcome: Outcome, frame: bytes, backend: BackendRow) -> int:
    """Assert that `frame` was sent on to a remote backend, translated on both sides; return the SNAT port."""
    assert outcome.forwarded, outcome
    _, port = source(outcome)
    assert port in SNAT_PORTS
    wanted = translated(
        frame, src=backend.family.node2, sport=port, dst=backend.address, dport=backend.port, hop=1, **TO_BACKEND
    )
    assert outcome.packet == wanted, difference(outcome.packet, wanted)
    return port


def handed_up_to(outcome: Outcome, frame: bytes, backend: BackendRow) -> None:
    """Assert that `frame` was given to a backend of this node: destination changed, TTL and source untouched."""
    assert outcome.passed, outcome
    wanted = translated(frame, dst=backend.address, dport=backend.port)
    assert outcome.packet == wanted, difference(outcome.packet, wanted)


def replied(outcome: Outcome, frame: bytes, service: ServiceRow, client: str, port: int) -> None:
    """Assert that a remote backend's reply went to the client as the frontend's."""
    assert outcome.forwarded, outcome
    wanted = translated(frame, src=service.address, sport=service.port, dst=client, dport=port, hop=1, **TO_CLIENT)
    assert outcome.packet == wanted, difference(outcome.packet, wanted)


def replied_in_place(outcome: Outcome, frame: bytes, service: ServiceRow) -> None:
    """Assert that a local backend's reply has the frontend's address and keeps its destination."""
    assert outcome.passed, outcome
    wanted = translated(frame, src=service.address, sport=service.port)
    assert outcome.packet == wanted, difference(outcome.packet, wanted)


def untouched(outcome: Outcome, frame: bytes) -> None:
    """Assert that the stack gets the very bytes that came in."""
    assert outcome.passed, outcome
    assert outcome.packet == frame, difference(outcome.packet, frame)


def marked(frame: bytes) -> bytes:
    """Return a frame as XDP leaves it to tc_after_xdp where the driver has no metadata: with the group bit in the source MAC.

    A test run gives tc no metadata, so it is in this form that tc_after_xdp gets its frames here.
    """
    return frame[:6] + bytes((frame[6] | 1,)) + frame[7:]


def handed_over(world: World, frame: bytes, device: int = 0, reason: Reason = Reason.PASS_NEIGHBOR) -> Outcome:
    """Assert that XDP leaves `frame` untouched to tc_after_xdp and counts nothing but that; return what became of it there."""
    out = world.run(XDP, frame, device)
    untouched(out, frame)
    assert out.metadata, "tc_after_xdp cannot recognise the frame"
    assert out.counted == {reason: 1}
    return world.run(TC_AFTER_XDP, marked(frame), device)


def difference(got: bytes, wanted: bytes) -> str:
    """Show two frames field by field."""
    return f"\n got  {craft.decode(got)!r}\n want {craft.decode(wanted)!r}\n got  {got.hex()}\n want {wanted.hex()}"


def _text(packed: bytes) -> str:
    return craft.FAMILIES[4 if len(packed) == 4 else 6].text(packed)


# --- conversations ---


def remote_reply(
    fam: Family, proto: int, backend: BackendRow, port: int, flags: str = "SA", *, to: str = "", **kw: object
) -> bytes:
    """Return a remote backend's packet to the SNAT port, as it comes in by lb1; `to`: another source address than the first."""
    words = (fam, proto, backend.address, backend.port, to or fam.node2, port, flags)
    if not kw:
        return plain(*words, smac=BACKEND_MAC, dmac=NODE2_MAC)
    return craft.frame(craft.segment(*words, **kw), src=BACKEND_MAC, dst=NODE2_MAC)


def local_reply(
    fam: Family, proto: int, backend: BackendRow, client: str, port: int, flags: str = "SA", **kw: object
) -> bytes:
    """Return a local backend's packet to the client, as it leaves the pod."""
    words = (fam, proto, backend.address, backend.port, client, port, flags)
    if not kw:
        return plain(*words, smac=craft.LOCAL_MAC, dmac=craft.POD_MAC)
    return craft.frame(craft.segment(*words, **kw), src=craft.LOCAL_MAC, dst=craft.POD_MAC)


def at_pod(world: World, frame: bytes) -> Outcome:
    """Run a frame that comes out of a pod."""
    return world.run(TC_INGRESS, frame, world.net.pod0)


def leaving(world: World, frame: bytes) -> Outcome:
    """Run a frame that leaves by lb0."""
    return world.run(TC_EGRESS, frame, world.net.lb0)
