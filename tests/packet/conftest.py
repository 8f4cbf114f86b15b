"""Fixtures of the packet tests: a loaded world, emptied before each test, and the parameters family and hook."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.errors import Unsupported
from tests.packet.clock import TimedWorld, open_timed_world
from tests.packet.craft import FAMILIES, Family
from tests.packet.harness import SMALL, open_world
from tests.packet.world import TC_INGRESS, XDP, World

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest


WITHOUT_PROGRAMS = {"test_plain_frames.py", "test_wire.py"}  # they load none, unless they use a world


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that load programs."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        loads = item.path.name not in WITHOUT_PROGRAMS or any(name.endswith("world") for name in names)
        if Path(__file__).parent in item.path.parents and loads:
            item.add_marker("root")
            item.add_marker("bpf")


@pytest.fixture(scope="session")
def loaded_world() -> Iterator[World]:
    """Load the programs once, with default settings and small tables, and a clock that stands still."""
    try:
        with open_timed_world() as timed:
            yield timed.world
    except Unsupported as error:
        pytest.skip(str(error))


@pytest.fixture
def world(loaded_world: World) -> World:
    """Return the world with nothing in it."""
    loaded_world.reset()
    return loaded_world


@pytest.fixture(scope="session")
def loaded_announcing_world() -> Iterator[World]:
    """Load programs that announce."""
    with open_world(ProgramSettings(announce=True)) as world:
        yield world


@pytest.fixture(scope="session")
def loaded_still_world() -> Iterator[TimedWorld]:
    """Load programs with one bucket of four entries and one SNAT port, for which time stands still."""
    sizes = dataclasses.replace(SMALL, flow4=4, flow6=4, snat4=64, snat6=64)
    with open_timed_world(ProgramSettings(snat_port_min=2000, snat_port_max=2000), sizes) as timed:
        yield timed


@pytest.fixture
def still_world(loaded_still_world: TimedWorld) -> TimedWorld:
    """Return it with nothing in it."""
    loaded_still_world.reset()
    return loaded_still_world


@pytest.fixture(params=[4, 6], ids=["ipv4", "ipv6"])
def fam(request: SubRequest) -> Family:
    """Run the test once for each IP version."""
    return FAMILIES[request.param]


@pytest.fixture(params=[XDP, TC_INGRESS])
def hook(request: SubRequest) -> str:
    """Run the test at each hook that receives requests."""
    return str(request.param)
