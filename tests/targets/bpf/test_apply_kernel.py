"""The same plans on the kernel's maps: what they hold is what the maps in memory hold."""

import pytest

from lbagent.errors import KernelError
from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.testing.faulty_maps import FaultyMaps, Killed, fail_at
from tests.maps.conftest import private_bpffs
from tests.targets.bpf.plans import SMALL, Node, backend, service
from tests.targets.bpf.test_restore import EVERYTHING

pytestmark = [pytest.mark.root, pytest.mark.bpf]
STATES = [
    EVERYTHING,
    EVERYTHING[1:4],
    [service("10.96.0.1:80", backend("10.244.1.12:80")), *EVERYTHING[3:]],
    [],
    EVERYTHING[::-1],
]


@pytest.fixture
def maps():
    with private_bpffs() as path, KernelMaps.open(path, SMALL) as found:
        yield found


def contents(maps) -> dict:
    found = {name: sorted(maps.items(name)) for name in maps.specs if maps.specs[name].type in (1, 2, 11)
             and maps.specs[name].flags & (1 << 10) == 0}  # fmt: skip
    for name in ("lb4_path", "lb6_path", "lb_filter"):
        with maps.window(name, 0, maps.specs[name].value_size) as view:
            found[name] = bytes(view)
    return found | {name: maps.maglev(name) for name in ("lb4_maglev", "lb6_maglev")}


def test_kernel_and_memory_hold_the_same(maps):
    kernel, memory = Node(maps), Node()
    for services in STATES:
        kernel.serve(*services)
        memory.serve(*services)
        assert dump(maps) == dump(memory.maps)
        assert contents(maps) == contents(memory.maps)
        assert check(maps, settled=True) == []


def test_a_restart_writes_nothing_to_the_kernel(maps):
    node = Node(maps)
    node.serve(*EVERYTHING)
    node.restart()
    node.want(*EVERYTHING)
    node.maps = FaultyMaps(maps, before=fail_at(0, KernelError("update", 1, "any map")))
    assert node.sync().complete
    assert node.maps.writes == 0


@pytest.mark.parametrize("number", range(0, 48, 3))
def test_a_kill_between_two_writes_is_made_good(maps, number):
    node = Node(maps)
    node.serve(*STATES[1])
    node.want(*STATES[2])
    node.maps = FaultyMaps(maps, before=fail_at(number, Killed()))
    try:
        node.sync()
    except Killed:
        pass
    assert check(maps) == []
    again = Node(maps)
    again.restart()
    again.serve(*STATES[2])
    assert check(maps, settled=True) == []
    again.restart()
    again.want(*STATES[2])
    assert again.sync().entries == 0
