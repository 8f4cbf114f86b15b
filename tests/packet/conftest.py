"""Fixtures of the packet tests: a loaded world, emptied before each test, and the parameters family and hook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lbagent.errors import Unsupported
from tests.packet.craft import FAMILIES, Family
from tests.packet.harness import open_world
from tests.packet.world import TC_INGRESS, XDP, World

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what loads programs, which is what asks for a world."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if Path(__file__).parent in item.path.parents and any(name.endswith("world") for name in names):
            item.add_marker("root")
            item.add_marker("bpf")


@pytest.fixture(scope="session")
def loaded_world() -> Iterator[World]:
    """Load the programs once, with default settings and small tables."""
    try:
        with open_world() as world:
            yield world
    except Unsupported as error:
        pytest.skip(str(error))


@pytest.fixture
def world(loaded_world: World) -> World:
    """Return the world with nothing in it."""
    loaded_world.reset()
    return loaded_world


@pytest.fixture(params=[4, 6], ids=["ipv4", "ipv6"])
def fam(request: SubRequest) -> Family:
    """Run the test once for each IP version."""
    return FAMILIES[request.param]


@pytest.fixture(params=[XDP, TC_INGRESS])
def hook(request: SubRequest) -> str:
    """Run the test at each hook where requests come in."""
    return str(request.param)
