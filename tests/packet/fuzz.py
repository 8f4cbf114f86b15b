"""Fuzzer of the packet programs: `python -m tests.packet.fuzz [N] [--seed S]`.

For every packet: a valid verdict, no packet to an address that is neither backend nor client, right checksums wherever the ones
that came in were right, payload and hop count as they must be. What cannot be parsed is never forwarded and never touched.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

from scapy.layers.inet import IP, in4_chksum
from scapy.layers.inet6 import IPv6, in6_chksum
from scapy.layers.sctp import crc32c as scapy_crc32c
from scapy.utils import checksum as scapy_checksum

from lbagent.maps.reasons import Reason
from lbagent.testing.bpf_test_run import Tc, Xdp
from tests.packet import corpus, craft, wire
from tests.packet.churn import Churn
from tests.packet.corpus import Scene
from tests.packet.expect import marked
from tests.packet.harness import open_world
from tests.packet.mutate import mutate
from tests.packet.world import TC_AFTER_XDP, XDP, World, runnable

SEED = 20260731
EPOCH = 20_000  # packets after which the world is emptied: tables full of odd flows would hide the rest
SAMPLE = 997  # of the translated packets one in so many is held against scapy
CHURN = 250  # packets between two changes of backends or next hops
WEIGHTED = (
    "request", "request", "request", "reply", "reply", "error", "error", "odd", "odd", "inside", "inside", "train", "chunk",
)  # fmt: skip  # shares of the seeds
NEVER = (Reason.DROP_INTERNAL, Reason.DROP_MISSING_BACKEND)  # counted only when we are wrong
ABORTS = (6, 14)  # SCTP's ABORT and SHUTDOWN COMPLETE
VALID: dict[bool, set[int]] = {
    True: {Xdp.DROP, Xdp.PASS, Xdp.TX, Xdp.REDIRECT},
    False: {Tc.UNSPEC, Tc.OK, Tc.SHOT, Tc.REDIRECT},
}
SENT: dict[bool, set[int]] = {True: {Xdp.TX, Xdp.REDIRECT}, False: {Tc.REDIRECT}}


class Bad(AssertionError):
    """A packet for which a rule does not hold."""


class Checker:
    """Checks the outcome of each frame; has the scene and the flows opened since."""

    def __init__(self, scene: Scene) -> None:
        """Take a scene whose flows are open."""
        self.scene = scene
        self.former = set(scene.backends)  # those of the beginning, removed ones too
        self.seen: Counter[str] = Counter()
        self.frontend_of: dict[
            tuple[bytes | int, ...], tuple[bytes | int, ...]
        ] = {}  # both ends of a flow as its backend sees it
        self.local = {fam.packed(fam.local(n)) for fam in craft.FAMILIES.values() for n in (1, 2)}

    def judge(self, hook: str, frame: bytes, verdict: int, out: bytes) -> None:
        """Raise Bad if a rule is broken."""
        xdp = hook == XDP
        if verdict not in VALID[xdp]:
            raise Bad(f"verdict {verdict}")
        before = wire.parse(frame)
        if before is not None and before.fragment and before.first:  # a later fragment may open the flow
            self.scene.clients.add((before.src, before.sport, before.proto))
        if verdict == (Xdp.DROP if xdp else Tc.SHOT):
            self.seen["dropped"] += 1
            return
        sent = verdict in SENT[xdp]
        if not sent and out == frame:
            self.seen["untouched"] += 1
            return
        after = wire.parse(out)
        if before is None:
            raise Bad("a frame that is no readable packet was touched")
        if after is None:
            raise Bad("what came out is no readable packet")
        if sent and is_cut(frame, before, out, after):
            self._cut(frame, before, out, after)
            return
        kept = (after.src, after.sport) == (before.src, before.sport)
        if not before.first and before.src in self.scene.snat:  # a later fragment does not show whether it has SNAT
            kept = kept and after.ttl == before.ttl
        back_up = kept and after.dst in self.local  # tc_egress: was leaving, its backend is here
        if after.ttl == 0 and sent and not back_up:
            raise Bad("sent with hop count 0")
        if not before.bad and after.bad:
            raise Bad(f"wrong checksum: {after.bad}")
        self._what(frame, before, out, after, hops=sent and not back_up)

    def _what(self, frame: bytes, before: wire.Wire, out: bytes, after: wire.Wire, *, hops: bool) -> None:
        if hops and after.dst == before.src and after.src == before.dst and out[:6] == frame[6:12]:
            self._answer(frame, before, out, after)
        elif before.icmp is not None:
            self._error(before, after)
        else:
            self._translated(frame, before, out, after, hops=hops)

    def _answer(self, frame: bytes, before: wire.Wire, out: bytes, after: wire.Wire) -> None:
        """An answer of the program: a RST or an ICMP error about this packet."""
        self.seen["answered"] += 1
        if after.bad:
            raise Bad(f"an answer with a wrong checksum: {after.bad}")
        if after.icmp is not None:
            if not frame[before.l2 :].startswith(out[after.l4 + 8 : after.end]):
                raise Bad("an answer that quotes something else")
        elif after.proto == wire.SCTP:
            if out[after.l4 + 12] not in ABORTS:
                raise Bad("an answer of SCTP that is no ABORT")
        elif after.proto != wire.TCP or not out[after.l4 + 13] & 4:
            raise Bad("an answer that is neither ICMP nor RST")

    def _error(self, before: wire.Wire, after: wire.Wire) -> None:
        """A translated ICMP error goes to a client or a backend and quotes what that one sent."""
        self.seen["errors"] += 1
        scene, quoted = self.scene, after.quoted
        if quoted is None or before.quoted is None or after.icmp != before.icmp:
            raise Bad("an ICMP message without a quoted packet was touched")
        if set(quoted.bad) - set(before.quoted.bad):
            raise Bad(f"a wrong checksum in the quoted packet: {quoted.bad}")
        if after.dst != quoted.src:
            raise Bad("the error is not for the sender of the quoted packet")
        sender, target = (quoted.src, quoted.sport, quoted.proto), (quoted.dst, quoted.dport, quoted.proto)
        to_backend = sender in scene.backends and (quoted.dst in scene.snat or target in scene.clients)
        to_client = sender in scene.clients and target in scene.frontends
        if not to_backend and not to_client:
            raise Bad(f"the error went to a stranger: {sender} about {target}")

    def _translated(self, frame: bytes, before: wire.Wire, out: bytes, after: wire.Wire, *, hops: bool) -> None:
        """A request to a backend or a reply to a client; nothing but addresses, ports, sums and hop count changed."""
        scene = self.scene
        if before.first and frame[before.l4 + 4 : before.l4 + 6] != out[after.l4 + 4 : after.l4 + 6]:
            raise Bad("the L4 header was changed")
        skip = {wire.TCP: 18, wire.SCTP: 12}.get(before.proto, 8)
        if before.first and wire.l4_bytes(frame, before)[skip:] != wire.l4_bytes(out, after)[skip:]:
            raise Bad("the payload was changed")
        if after.ttl != before.ttl - hops:
            raise Bad(f"hop count {before.ttl} became {after.ttl}")
        if before.proto == wire.TCP and ("tcp" in before.bad) != ("tcp" in after.bad):
            raise Bad("a wrong TCP checksum was made right")
        if before.proto == wire.SCTP:
            self._crc(before, frame, after, out)
        if not before.first:
            self._later(before, after)
            return
        source, target = (after.src, after.sport, after.proto), (after.dst, after.dport, after.proto)
        reset = (
            frame[before.l4 + 13] & 4
            if before.proto == wire.TCP
            else before.proto == wire.SCTP and frame[before.l4 + 12] in ABORTS
        )
        if reset and target in self.former:
            self.seen["farewells"] += 1  # also to a backend that was removed: it may still run
        elif target in scene.backends:
            self.seen["requests"] += 1
            self.frontend_of[(*target, *source[:2])] = (before.src, before.sport, before.dst, before.dport)
            if after.src != before.src and after.src not in scene.snat:
                raise Bad("a request with a source that is neither the client's nor ours")
            asked = (before.dst, before.dport, before.proto)
            if asked != target and asked not in scene.frontends:
                raise Bad(f"a request of no frontend: {asked}")
            scene.clients.add((before.src, before.sport, before.proto))
        elif source in scene.frontends and target in scene.clients:
            self.seen["replies"] += 1
            opened = self.frontend_of.get((before.src, before.sport, before.proto, before.dst, before.dport))
            if opened not in (None, (after.dst, after.dport, after.src, after.sport)):
                raise Bad(f"a reply for the flow {opened}")
        else:
            raise Bad(f"from {source} to {target}: neither backend nor client")

    def _crc(self, before: wire.Wire, frame: bytes, after: wire.Wire, out: bytes) -> None:
        """A wrong CRC stays wrong, and 0 stays 0."""
        if ("sctp" in before.bad) != ("sctp" in after.bad):
            raise Bad("a wrong SCTP checksum was made right")
        if (frame[before.l4 + 8 : before.l4 + 12] == bytes(4)) != (out[after.l4 + 8 : after.l4 + 12] == bytes(4)):
            raise Bad("an SCTP packet lost or got its checksum")
        self.seen["associations"] += 1

    def _cut(self, frame: bytes, before: wire.Wire, out: bytes, after: wire.Wire) -> None:
        """The last fragment of a datagram without DF: the end of what came in, for an address that it may be for."""
        self.seen["cut"] += 1
        data = out[after.l2 + 20 : after.end]
        if frame[before.l2 + 6] & 0x40 or (after.bad and not before.bad):
            raise Bad("a datagram with DF was cut, or badly")
        to_own_pod = after.src == before.src and after.dst in self.local  # on its way out, to a backend that is here
        if data != frame[before.end - len(data) : before.end] or after.ttl != before.ttl - (not to_own_pod):
            raise Bad("the last fragment is not the end of the datagram")
        if before.first and after.dst in {address for address, _, _ in self.scene.backends}:
            self.scene.clients.add((before.src, before.sport, before.proto))
        self._later(before, after)

    def _later(self, before: wire.Wire, after: wire.Wire) -> None:
        """Later fragments have no ports: the addresses must do."""
        self.seen["fragments"] += 1
        backends = {address for address, _, _ in self.scene.backends}
        clients = {address for address, _, _ in self.scene.clients}
        frontends = {address for address, _, _ in self.scene.frontends}
        for key in [k for k, v in self.frontend_of.items() if k[0] == after.dst and v[0] == before.src]:
            del self.frontend_of[key]  # it may have opened a flow, without its ports
        if after.dst not in backends and not (after.src in frontends and after.dst in clients):
            raise Bad("a later fragment went to a stranger")


def is_cut(frame: bytes, before: wire.Wire, out: bytes, after: wire.Wire) -> bool:
    """Return whether an IPv4 datagram left in fragments: what came out has another fragment offset."""
    offsets = (
        int.from_bytes(data[at + 6 : at + 8], "big") & 0x1FFF for data, at in ((frame, before.l2), (out, after.l2))
    )
    return before.family == 4 and len(set(offsets)) > 1 and (after.src, after.dst) != (before.dst, before.src)


def against_scapy(frame: bytes) -> None:
    """Hold one frame's checksums, which our own parser finds right, against scapy's."""
    seen = wire.parse(frame)
    if seen is None or seen.bad or seen.l4 == 0 or seen.fragment:
        return
    segment = wire.l4_bytes(frame, seen)
    if seen.family == 4 and scapy_checksum(frame[seen.l2 : seen.l2 + (frame[seen.l2] & 15) * 4]):
        raise Bad("scapy computes another IP checksum")
    if seen.proto == wire.UDP:
        length = int.from_bytes(segment[4:6], "big")
        if not 8 <= length <= len(segment) or not any(segment[6:8]):
            return
        segment = segment[:length]
    if seen.proto == wire.SCTP:
        covered = segment[:8] + bytes(4) + segment[12:]
        if any(segment[8:12]) and scapy_crc32c(covered) != int.from_bytes(segment[8:12], "big"):
            raise Bad("scapy computes another CRC32c")
        return
    if seen.proto == wire.ICMP:
        found = scapy_checksum(segment)
    elif seen.family == 4:
        found = in4_chksum(seen.proto, IP(src=_text(seen.src), dst=_text(seen.dst)), segment)
    else:
        found = in6_chksum(  # type: ignore[no-untyped-call]
            seen.proto, IPv6(src=_text(seen.src), dst=_text(seen.dst)), segment
        )
    if found not in (0, 0xFFFF):
        raise Bad("scapy computes another L4 checksum")


def _text(address: bytes) -> str:
    return craft.FAMILIES[4 if len(address) == 4 else 6].text(address)


def fuzz(world: World, count: int, seed: int = SEED) -> Counter[str]:
    """Run `count` packets; return how many ended how. Raises Bad with all that is needed to repeat the packet."""
    rng = random.Random(seed)
    total: Counter[str] = Counter()
    before = {reason: world.counter(reason)[0] for reason in NEVER}
    done = translated = 0
    while done < count:
        scene = corpus.build(world)
        checker, churn = Checker(scene), Churn(scene, rng)
        with world.net.inside():
            for hook, device, frame in stream(rng, scene, min(EPOCH, count - done), every_length=done == 0):
                done += 1
                if done % CHURN == 0:
                    churn.step()
                if not runnable(hook, frame):
                    total["refused by the kernel"] += 1
                    continue
                result = world.raw(hook, frame, device)
                try:
                    checker.judge(hook, frame, result.verdict, result.packet)
                    if result.metadata and not frame[6] & 1:
                        total["left to tc"] += 1
                        result = world.raw(TC_AFTER_XDP, marked(frame), device)
                        checker.judge(TC_AFTER_XDP, frame, result.verdict, result.packet)
                    if result.packet != frame:
                        translated += 1
                        if translated % SAMPLE == 0:
                            against_scapy(result.packet)
                except Bad as error:
                    raise Bad(
                        f"packet {done} of seed {seed}: {error}\n {hook} at device {device}, verdict {result.verdict}"
                        f"\n in  {frame.hex()}\n out {result.packet.hex()}"
                    ) from None
        total += checker.seen
        found = {reason: packets for reason in NEVER if (packets := world.counter(reason)[0] - before[reason])}
        if found:
            raise Bad(f"within {done} packets of seed {seed}: {found}")
    return total


def stream(rng: random.Random, scene: Scene, count: int, *, every_length: bool) -> Iterator[tuple[str, int, bytes]]:
    """Yield (hook, device, frame): first every seed cut at every length, then mutations."""
    yielded = 0
    if every_length:
        shapes = {(hook, len(frame) // 24, frame[12:16]): (hook, device, frame) for hook, device, frame in scene.seeds}
        for hook, device, frame in shapes.values():
            for length in range(14, min(len(frame), 130)):
                yield hook, device, frame[:length]
                yielded += 1
    kinds, seeds = [scene.kinds[kind] for kind in WEIGHTED], scene.seeds
    for _ in range(count - yielded):
        chosen = kinds[rng.randrange(len(kinds))]
        hook, device, frame = chosen[rng.randrange(len(chosen))]
        yield hook, device, mutate(rng, frame, seeds[rng.randrange(len(seeds))][2])


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.packet.fuzz", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=SEED, help=f"default {SEED}; 0: a new one")
    options = parser.parse_args(arguments)
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 31)
    print(f"seed {seed}", flush=True)
    start = time.monotonic()
    with open_world() as world:
        try:
            total = fuzz(world, options.count, seed)
        except Bad as error:
            print(error, file=sys.stderr)
            return 1
    print(
        f"{options.count} packets in {time.monotonic() - start:.0f} s: "
        + ", ".join(f"{n} {what}" for what, n in total.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
