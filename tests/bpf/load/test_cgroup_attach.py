"""Socket programs on a cgroup: pinned links, other programs beside them, another agent, kernels that lack a helper."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.bpf.compiler import artifact as artifacts
from lbagent.bpf.compiler.c_source import ARTIFACT_PATH
from lbagent.bpf.hooks import SOCK_CONTEXT, SOCKET_HOOKS, AttachPoint, AttachPointKind, load_attach_type
from lbagent.bpf.load import attach, links, loader
from lbagent.bpf.load.verifier_report import temporary_maps
from lbagent.errors import ConfigError, Conflict, NotFound
from lbagent.kernel import bpf_link, bpf_prog, features
from lbagent.kernel.bpfsys import bpf
from lbagent.kernel.mounts import first_cgroup, open_cgroup
from lbagent.kernel.opcodes import returning
from lbagent.kernel.sock_diag import netns_cookie
from tests.bpf.support import config_record
from tests.lab import cgroup
from tests.lab.netns import Namespace

pytestmark = [pytest.mark.root, pytest.mark.bpf]
PROG_ATTACH, PROG_DETACH, ALLOW_OVERRIDE = 8, 9, 1  # commands and a flag that lbagent itself never uses


@pytest.fixture
def group() -> Iterator[Path]:
    with cgroup.made() as path:
        yield path


def programs_of(cookie: int, stack, **settings: object) -> dict[str, int]:
    """Load the socket programs of an agent with maps of its own that serves a network namespace."""
    fds = stack.enter_context(temporary_maps())
    own = stack.enter_context(loader.generation_maps(config_record(netns_cookie=cookie, **settings)))
    built = artifacts.load(ARTIFACT_PATH).programs
    names = [name for name, program in built.items() if program.context == SOCK_CONTEXT.name]
    out = {name: loader.load_program(built[name], loader.with_old_maps({**fds, **own})) for name in names}
    for fd in out.values():
        stack.callback(os.close, fd)
    return out


@pytest.fixture
def stack():
    with contextlib.ExitStack() as made:
        yield made


def on(group: Path) -> list[int]:
    fd = open_cgroup(str(group))
    try:
        return [ident for hook in SOCKET_HOOKS for ident in bpf_link.cgroup_programs(fd, hook.attach_type)]
    finally:
        os.close(fd)


def test_links_are_pinned_updated_and_taken_away(root, netns, group, stack):
    wanted = attach.socket_attachments(str(group))
    first, second = programs_of(7, stack), programs_of(7, stack)
    assert attach.attach(root, wanted, first, fall_back=False) == wanted
    assert sorted(attach.attached(root), key=str) == sorted(wanted, key=str)
    assert on(group) == [bpf_prog.prog_info(first[hook.program]).id for hook in SOCKET_HOOKS]
    assert attach.lost(root, wanted, first) == []
    attach.attach(root, wanted, second, fall_back=False)
    assert on(group) == [bpf_prog.prog_info(second[hook.program]).id for hook in SOCKET_HOOKS]
    assert {why for _, why in attach.lost(root, wanted, first)} == {"another program was put into its link"}
    attach.attach(root, [], second, fall_back=False)
    assert on(group) == []
    assert list((root / "link").iterdir()) == []


def test_a_detached_link_is_named_and_made_again(root, netns, group, stack):
    wanted, programs = attach.socket_attachments(str(group)), programs_of(7, stack)
    attach.attach(root, wanted, programs, fall_back=False)
    target = AttachPoint(AttachPointKind.CGROUP, str(group))
    assert links.linked_program(root, target, SOCKET_HOOKS[2])
    links.detach_link(root, target, SOCKET_HOOKS[2])
    assert attach.lost(root, wanted, programs) == [(wanted[2], "the pin of its link was removed")]
    attach.attach(root, wanted, programs, fall_back=False)
    assert attach.lost(root, wanted, programs) == []
    attach.detach_all(root)


def test_another_agent_of_the_same_network_namespace_is_refused(root, netns, group, stack):
    wanted, other = attach.socket_attachments(str(group)), root.parent / "other"
    other.mkdir()
    attach.attach(root, wanted, programs_of(7, stack), fall_back=False)
    before = on(group)
    with pytest.raises(Conflict, match="another lbagent, whose pins are in another --bpffs"):
        attach.attach(other, wanted, programs_of(7, stack), fall_back=False)
    assert on(group) == before
    attach.attach(other, wanted, programs_of(8, stack), fall_back=False)
    assert len(on(group)) == 2 * len(before)
    for each in (root, other):
        attach.detach_all(each)


def test_an_agent_of_native_pools_alone_and_one_of_a_cluster_may_share_a_cgroup(root, netns, group, stack):
    wanted, other, third = attach.socket_attachments(str(group)), root.parent / "other", root.parent / "third"
    other.mkdir()
    third.mkdir()
    attach.attach(root, wanted, programs_of(7, stack, pools_alone=True), fall_back=False)
    attach.attach(other, wanted, programs_of(7, stack), fall_back=False)
    assert len(on(group)) == 2 * len(SOCKET_HOOKS)
    for pools_alone in (True, False):  # a second one of either is one too many
        with pytest.raises(Conflict):
            attach.attach(third, wanted, programs_of(7, stack, pools_alone=pools_alone), fall_back=False)
    for each in (root, other):
        attach.detach_all(each)


def test_another_agent_on_a_cgroup_above_is_seen(root, netns, group, stack):
    below, other = group / "below", root.parent / "other"
    below.mkdir()
    other.mkdir()
    try:
        attach.attach(root, attach.socket_attachments(str(group)), programs_of(7, stack), fall_back=False)
        with pytest.raises(Conflict):
            attach.attach(other, attach.socket_attachments(str(below)), programs_of(7, stack), fall_back=False)
        attach.detach_all(root)
    finally:
        below.rmdir()


def test_a_program_that_allows_none_beside_it_is_named(root, netns, group, stack):
    hook = SOCKET_HOOKS[0]
    foreign = bpf_prog.prog_load(
        hook.context.prog_type, returning(1), "foreign", expected_attach_type=hook.attach_type
    ).fd
    stack.callback(os.close, foreign)
    fd = open_cgroup(str(group))
    stack.callback(os.close, fd)
    bpf(PROG_ATTACH, struct.pack("<IIII", fd, foreign, hook.attach_type, ALLOW_OVERRIDE))
    try:
        with pytest.raises(Conflict, match="allows none beside it"):
            attach.attach(root, attach.socket_attachments(str(group)), programs_of(7, stack), fall_back=False)
    finally:
        bpf(PROG_DETACH, struct.pack("<IIII", fd, foreign, hook.attach_type, 0))


def test_what_is_no_cgroup_is_refused(root, netns, tmp_path, stack):
    programs = programs_of(7, stack)
    with pytest.raises(NotFound, match="no cgroup"):
        attach.attach(root, attach.socket_attachments(str(tmp_path / "none")), programs, fall_back=False)
    with pytest.raises(ConfigError, match="not on a cgroup2 file system"):
        attach.attach(root, attach.socket_attachments(str(tmp_path)), programs, fall_back=False)


def test_a_kernel_without_set_retval_loads_them_all(monkeypatch, stack):
    """Linux 5.15: a rejected call fails with EPERM."""
    monkeypatch.setattr(features, "has_set_retval", lambda: False)
    assert programs_of(7, stack).keys() == {hook.program for hook in SOCKET_HOOKS}


def test_programs_are_loaded_for_their_attach_type():
    assert [load_attach_type("sock", hook.program) for hook in SOCKET_HOOKS] == [10, 11, 14, 15, 19, 20, 29, 30]
    assert load_attach_type("xdp", "xdp") == load_attach_type("tc", "tc_ingress") == 0


def test_a_network_namespace_has_its_own_cookie(netns):
    other = Namespace("other")
    try:
        assert 0 != netns_cookie() != other.call(netns_cookie) != 0
    finally:
        other.delete()


def test_the_first_mount_is_one_of_cgroup2():
    fd = open_cgroup(first_cgroup())
    os.close(fd)
