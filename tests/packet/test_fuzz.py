"""200,000 mutated packets and none of them breaks a rule; `make fuzz N=...` runs more."""

from __future__ import annotations

import random

import pytest

from tests.packet import corpus, craft, wire
from tests.packet.fuzz import SEED, Bad, Checker, fuzz
from tests.packet.mutate import mend, mutate
from tests.packet.world import XDP, World

PACKETS = 200_000


@pytest.mark.timeout(900)  # a minute alone
@pytest.mark.slow
def test_no_packet_breaks_a_rule(world: World) -> None:
    """Truncated at every length, bad lengths, nested VLAN, extension chains, short quotes, fragments, flipped bits."""
    print(f"seed {SEED}")
    total = fuzz(world, PACKETS)
    # the mutations must reach every kind of outcome, or this test proves nothing
    for kind in ("requests", "replies", "errors", "answered", "fragments", "dropped", "untouched"):
        assert total[kind] > 300, total


def test_checker_sees_what_is_wrong(world: World) -> None:
    """The judge detects faults: wrong verdict, wrong target, wrong checksum, lost payload, wrong hop count."""
    scene = corpus.build(world)
    checker = Checker(scene)
    fam = craft.V4
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, load=b"hello"))
    good = craft.frame(craft.tcp(fam, fam.node2, 2000, fam.remote(1), 8080, load=b"hello", ttl=63))
    checker.judge(XDP, frame, 4, good)
    wrong_sum = good[:-1] + bytes([good[-1] ^ 1])
    for verdict, out in (
        (0, frame),
        (7, good),
        (4, craft.frame(craft.tcp(fam, fam.node2, 2000, fam.remote(9), 8080, load=b"hello", ttl=63))),
        (4, craft.frame(craft.tcp(fam, fam.node2, 2000, fam.remote(1), 8081, load=b"hello", ttl=63))),
        (4, craft.frame(craft.tcp(fam, fam.client2, 2000, fam.remote(1), 8080, load=b"hello", ttl=63))),
        (4, craft.frame(craft.tcp(fam, fam.node2, 2000, fam.remote(1), 8080, load=b"hallo", ttl=63))),
        (4, craft.frame(craft.tcp(fam, fam.node2, 2000, fam.remote(1), 8080, load=b"hello", ttl=64))),
        (4, wrong_sum),
        (4, good[:40]),
    ):
        with pytest.raises(Bad):
            checker.judge(XDP, frame, verdict, out)
    with pytest.raises(Bad):
        checker.judge(XDP, frame[:30], 2, frame[:29] + b"x")


def test_mended_checksums_are_right(world: World) -> None:
    """`mend` makes right what the parser can check; the same seed makes the same frames."""
    seeds = [frame for _, _, frame in corpus.build(world).seeds]
    frames = [
        [mutate(rng, rng.choice(seeds), rng.choice(seeds)) for _ in range(3000)]
        for rng in (random.Random(5), random.Random(5))
    ]
    assert frames[0] == frames[1]
    for frame in frames[0]:
        seen = wire.parse(mend(frame))
        assert seen is None or not seen.bad
