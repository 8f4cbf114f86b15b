"""The hook table agrees with what is compiled, with the maps and with itself."""

from __future__ import annotations

import pytest

from lbagent.bpf.compiler import artifact as artifacts
from lbagent.bpf.compiler.c_source import ARTIFACT_PATH, UNITS
from lbagent.bpf.hooks import CONTEXTS, HOOKS, INGRESS_MODES, AttachPoint, AttachPointKind, link_pin, parse_link_pin
from lbagent.config import options
from lbagent.maps.layout import CALL_MAPS


@pytest.mark.bpf  # the programs must be built
@pytest.mark.parametrize("hook", HOOKS, ids=str)
def test_every_hook_has_its_entry_program_in_the_build(hook):
    program = artifacts.load(ARTIFACT_PATH).programs[hook.program]
    assert program.context == hook.context.name
    assert CONTEXTS[hook.context.name] is hook.context


def test_every_context_is_compiled_from_sources_that_are_there():
    assert {unit.context for unit in UNITS} == set(CONTEXTS)
    assert [unit.name for unit in UNITS] == [
        "lb4_xdp", "lb6_xdp", "lb4_tc", "lb6_tc", "sock4_sock", "sock6_sock"
    ]  # fmt: skip
    assert all(unit.path.is_file() for unit in UNITS)


def test_every_tail_call_map_belongs_to_one_context():
    assert sorted(context.calls for context in CONTEXTS.values() if context.calls) == sorted(CALL_MAPS)


@pytest.mark.parametrize("hook", HOOKS, ids=str)
def test_a_pin_names_target_and_program(hook):
    called, pinned = {
        AttachPointKind.DEVICE: ("eth0.100-a", "eth0:100-a"),
        AttachPointKind.CGROUP: ("/sys/fs/cgroup/a-b.slice:c%", "%2Fsys%2Ffs%2Fcgroup%2Fa-b%2Eslice%3Ac%25"),
    }[hook.target]
    target = AttachPoint(hook.target, called)
    name = link_pin(target, hook)
    assert name == f"{pinned}-{hook.program}"
    found, other = parse_link_pin(name)
    assert found == target
    assert other.program == hook.program


def test_the_pin_of_no_hook_is_refused():
    with pytest.raises(ValueError, match="eth0-teapot"):
        parse_link_pin("eth0-teapot")


def test_every_way_of_attaching_an_operator_can_choose_is_a_hook():
    (choices,) = [option.choices for option in options() if option.key == "attach"]
    assert set(choices) == {"auto", *INGRESS_MODES}


def test_hooks_that_share_a_pin_can_be_told_apart_on_the_device():
    modes = [(hook.target, hook.program, hook.xdp_mode) for hook in HOOKS]
    assert len(modes) == len(set(modes))
