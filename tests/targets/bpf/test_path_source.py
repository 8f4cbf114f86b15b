"""A path keeps the source address it has as long as it may: its backends have their connections by that address."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lbagent.maps import backend_codec
from lbagent.maps.map_names import family_map
from lbagent.model.backend import Backend
from lbagent.model.extra_snat_sources import ExtraSnatAddress
from lbagent.model.path_info import PathInfo
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.drift import path_drift
from lbagent.targets.bpf.plan import plan, plan_paths
from tests.targets.bpf.plans import SMALL, Node, backend, service

STRIDE = SMALL.backends // 5
OLD, NEW = bytes((192, 168, 0, 1)), bytes((192, 168, 0, 77))
OLD6, NEW6 = bytes(15) + b"\x01", bytes(15) + b"\x77"
BOTH = frozenset({OLD, NEW, OLD6, NEW6})
FOUR, SIX, LOCAL = backend("10.244.1.12:8080"), backend("[fd00:1::2]:8080"), backend("10.244.1.11:8080")


def ways(four: bytes, six: bytes, kept: frozenset[bytes] = BOTH, **more: object) -> Callable[[Backend], PathInfo]:
    """Reach backends from these addresses, where they have none yet."""

    def found(item: Backend) -> PathInfo:
        source = four if len(item.address.address) == 4 else six
        mine = frozenset(address for address in kept if len(address) == len(source))
        return PathInfo(source, 5, 1400, item.address == LOCAL.address, kept=mine, **more)  # type: ignore[arg-type]

    return found


BEFORE, AFTER = ways(OLD, OLD6), ways(NEW, NEW6)


def serve(node: Node, paths: Callable[[Backend], PathInfo], *backends: Backend) -> int:
    """Serve these backends; return how many entries were written."""
    four, six = ([item for item in backends if item.address.family == family] for family in (4, 6))
    node.want(service("10.96.0.1:80", *four), service("[fd00::1]:80", *six))
    done = apply(plan(node.state, node.shadow, paths, sorted(BOTH)), node.maps, node.shadow)
    assert done.complete
    return done.entries


def repath(node: Node, paths: Callable[[Backend], PathInfo]) -> int:
    """Plan the paths alone, as after a change of the network; return how many entries were written."""
    return apply(plan_paths(node.shadow, node.state.backends.values(), paths), node.maps, node.shadow).entries


def source(node: Node, item: Backend) -> bytes:
    """Return the source address in a backend's record."""
    ident, family = node.book.backend_ids.get(item.address), item.address.family
    assert ident is not None
    size = node.shadow.paths[family].record
    with node.maps.window(family_map(family, "path"), ident * size, size) as view:
        return backend_codec.path_of(bytes(view)).snat


@pytest.mark.parametrize("item", [FOUR, SIX, LOCAL])
@pytest.mark.parametrize("restart", [False, True])
def test_another_first_address_of_the_node_changes_no_path(item: Backend, restart: bool) -> None:
    """Not when the network changes, not over a restart; a new backend takes the new one."""
    node = Node()
    serve(node, BEFORE, item)
    first = source(node, item)
    if restart:
        node.restart()
    assert serve(node, AFTER, item) == 0
    assert repath(node, AFTER) == 0
    assert not [line for line in path_drift(node.shadow, node.state, AFTER) if line]
    assert source(node, item) == first
    other = backend("10.244.1.14:8080")
    serve(node, AFTER, item, other)
    assert (source(node, item), source(node, other)) == (first, NEW)


@pytest.mark.parametrize("kept", [frozenset(), frozenset({NEW, NEW6})])
def test_when_the_address_goes_or_a_setting_names_another_the_path_takes_that(kept: frozenset[bytes]) -> None:
    node = Node()
    serve(node, BEFORE, FOUR, SIX)
    after = ways(NEW, NEW6, kept)
    assert len([line for line in path_drift(node.shadow, node.state, after) if line]) == 2
    repath(node, after)
    assert (source(node, FOUR), source(node, SIX)) == (NEW, NEW6)
    repath(node, BEFORE)
    assert (source(node, FOUR), source(node, SIX)) == (NEW, NEW6), "now this is the one it has"


def test_a_backend_that_comes_back_begins_anew() -> None:
    """No flow of its former record lives."""
    node = Node()
    serve(node, BEFORE, FOUR)
    node.want()
    apply(plan(node.state, node.shadow, BEFORE, sorted(BOTH)), node.maps, node.shadow)
    node.book.backend_ids._next = 1  # the same id again
    serve(node, AFTER, FOUR)
    assert node.book.backend_ids.get(FOUR.address) == 1
    assert source(node, FOUR) == NEW


def test_the_address_that_is_kept_is_no_extra_snat_address() -> None:
    """Its ports are the first record's; the one that would be first today may be an extra SNAT address."""
    node = Node()
    serve(node, BEFORE, FOUR)
    extra_snat = (ExtraSnatAddress(1, OLD), ExtraSnatAddress(2, NEW))
    repath(node, ways(NEW, NEW6, extra_snat=extra_snat))
    numbers = {
        number: backend_codec.path_of(node.shadow.paths[FOUR.address.family].get(1 + number * STRIDE)).live
        for number in (1, 2)
    }
    assert source(node, FOUR) == OLD
    assert numbers == {1: False, 2: True}
