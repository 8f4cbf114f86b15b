"""A direct connection that is a flow, and its pod, its port or its place in the filter is not what it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import expect, table
from tests.packet.caller import Caller, request
from tests.packet.craft import Family
from tests.packet.harness import open_world
from tests.packet.test_direct_tcp import PORT, Direct, scene
from tests.packet.world import TCP, World


@pytest.fixture(scope="module")
def narrow() -> Iterator[World]:
    """Load programs with one SNAT port."""
    with open_world(ProgramSettings(snat_port_min=2000, snat_port_max=2000)) as world:
        yield world


def test_the_pod_goes_and_its_place_in_the_filter_is_a_services(world: World, fam: Family, hook: str) -> None:
    """Segments are looked for as a frontend's first; they pass to the pod's address all the same, and nothing answers for it."""
    one = scene(world, fam, hook)
    one.caller.establish()
    one.direct.open()
    world.filter("vip", fam.packed(one.pod.address))
    world.remove_backend(one.pod)
    for flags in ("PA", "FA", "RA"):
        frame = request(fam, TCP, fam.client, PORT, one.pod.endpoint, flags)
        out = world.run(hook, frame)
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_NOT_SERVICE: 1}


def test_its_port_went_to_another_flow(narrow: World, fam: Family, hook: str) -> None:
    """Its SYN was never answered and lost the only port; the SYN that is sent again does not go to the pod as another one's."""
    narrow.reset()
    one = scene(narrow, fam, hook)
    one.caller.establish()
    one.direct.send("S")
    assert one.direct.has_snat_port
    table.later(narrow, fam, 3 * table.SLOT_UNIT)
    second = Caller(narrow, one.caller.service, fam.client2, PORT, hook)
    second.establish()
    other = Direct(narrow, one.pod, fam.client2, PORT, hook)
    other.open()
    assert other.has_snat_port
    out = narrow.run(hook, request(fam, TCP, fam.client, PORT, one.pod.endpoint, "S"))
    assert out.dropped
    assert out.counted == {Reason.DROP_SNAT_EXHAUSTED: 1}
    assert other.is_answered("PA")
