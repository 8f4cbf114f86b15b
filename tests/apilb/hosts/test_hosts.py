"""Complete hosts: everything by ssh, many hosts in parallel, native mode, users without root, no secrets in output."""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.apilb.hosts import carry_out, carry_out_all, observe
from lbagent.apilb.instance import Instance, Mode, Secret
from lbagent.apilb.instance_plan import wanted_text
from lbagent.apilb.plan_records import Action, Observed, RecordedInstance, Step
from lbagent.errors import ConfigError, HostUnreachable, LbError, Refused
from tests.apilb.hosts.host_lab import HostLab
from tests.lab.netns import run

pytestmark = pytest.mark.root


def step_of(action: Action, item: Instance | RecordedInstance) -> Step:
    wanted = item if isinstance(item, Instance) else None
    recorded = item if isinstance(item, RecordedInstance) else None
    return Step(pool=item.pool, name=item.name, host=item.host, action=action, instance=wanted, recorded=recorded)


async def look(lab: HostLab, *items: Instance | RecordedInstance) -> list[Observed | LbError]:
    with lab.space.entered():
        found = await observe(items)
    return [found[item.key] for item in items]


async def look_at(lab: HostLab, item: Instance | RecordedInstance) -> Observed:
    (found,) = await look(lab, item)
    assert isinstance(found, Observed), found
    return found


def there(path: str | Path) -> bool:
    return os.path.exists(path)


def mode_and_owner(path: str | Path) -> tuple[int, int]:
    found = os.stat(path)
    return stat.S_IMODE(found.st_mode), found.st_uid


async def test_a_life_by_ssh(lab: HostLab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = lab.folder / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    caplog.set_level(logging.DEBUG)
    target = lab.folder / "it's made"
    wanted = lab.instance(ssh=lab.access(), post_start=("touch", str(target)))
    with lab.servers(10001, 10002):
        assert await look(lab, wanted) == [Observed()]
        recorded = await lab.do(Action.CREATE, wanted)
        assert target.exists()
        lab.wait_answer(wanted, "10001")
        path = wanted.host_config_path
        assert [mode_and_owner(each) for each in (path, os.path.dirname(path))] == [(0o600, 65534), (0o700, 65534)]
        found = await look_at(lab, wanted)
        assert (found.status, found.spec_matches, found.file_text) == ("running", True, recorded.config_text)
        changed = replace(wanted, servers=("127.0.0.1:10002",))
        again = await lab.do(Action.UPDATE, changed, recorded)
        assert again.container_id == recorded.container_id
        lab.wait_answer(changed, "10002")
    await lab.do(Action.REMOVE, None, again)
    assert await look(lab, wanted) == [Observed()]
    assert os.listdir(scratch) == []
    assert lab.sshd.password not in caplog.text + str(lab.said)


async def test_a_user_who_is_not_root_writes_by_the_runtime(lab: HostLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    wanted = lab.instance()
    with lab.servers(10001, 10002):
        recorded = await lab.do(Action.CREATE, wanted)
        lab.wait_answer(wanted, "10001")
        changed = replace(wanted, servers=("127.0.0.1:10002",))
        recorded = await lab.do(Action.UPDATE, changed, recorded)
        lab.wait_answer(changed, "10002")
    found = await look_at(lab, changed)
    assert found.file_text == wanted_text(changed)
    assert mode_and_owner(wanted.host_config_path) == (0o600, 65534)
    await lab.do(Action.REMOVE, None, recorded)
    assert not {wanted.name, f"{wanted.name}-config"} & lab.names()
    assert os.listdir(os.path.dirname(wanted.host_config_path)) == []


@pytest.mark.parametrize("way", ["direct", "ssh"])
async def test_native_mode_is_a_file_alone(lab: HostLab, way: str) -> None:
    path = lab.folder / f"native-{way}" / "apilb.d" / "lb.yaml"
    ssh = lab.access() if way == "ssh" else None
    wanted = lab.instance(
        mode=Mode.NATIVE, host_config_path=str(path), ssh=ssh, docker_host="unix:///nothing.sock", image="none"
    )
    assert await look(lab, wanted) == [Observed()]
    recorded = await lab.do(Action.CREATE, wanted)
    assert path.read_text() == wanted_text(wanted)
    assert mode_and_owner(path) == (0o600, 0)
    assert (recorded.container_id, recorded.status) == ("", "running")
    assert await look(lab, wanted) == [Observed(status="running", ours=True, file_text=wanted_text(wanted))]
    first = path.stat().st_ino
    changed = replace(wanted, servers=("127.0.0.1:10002",))
    recorded = await lab.do(Action.UPDATE, changed, recorded)
    assert path.read_text() == wanted_text(changed)
    assert path.stat().st_ino != first
    await lab.do(Action.REMOVE, None, recorded)
    assert os.listdir(path.parent) == []


async def test_the_mode_changes_both_ways(lab: HostLab) -> None:
    container = lab.instance()
    native = replace(container, mode=Mode.NATIVE, host_config_path=str(lab.folder / f"{container.name}.d" / "lb.yaml"))
    recorded = await lab.do(Action.CREATE, container)
    recorded = await lab.do(Action.RECREATE, native, recorded)
    assert container.name not in lab.names()
    assert not there(container.host_config_path)
    assert there(native.host_config_path)
    recorded = await lab.do(Action.RECREATE, container, recorded)
    assert container.name in lab.names()
    assert not there(native.host_config_path)


async def test_hosts_are_worked_on_side_by_side_and_one_that_fails_stops_no_other(lab: HostLab) -> None:
    folder = lab.folder / "many"
    many = [
        lab.instance(
            mode=Mode.NATIVE,
            name="lb",
            host_config_path=str(folder / f"{at}.yaml"),
            ssh=lab.access(address=f"127.0.0.{at}", retry_timeout=0.5 if at == 5 else 30.0, port=9 if at == 5 else 22),
        )
        for at in range(1, 11)
    ]
    results: dict[Any, Any] = {}
    lines: list[str] = []
    steps = [step_of(Action.CREATE, each) for each in many]
    with lab.space.entered():
        await carry_out_all(
            steps,
            lambda step, text: lines.append(f"{step.host}: {text}"),
            lambda step, result: results.update({step.key: result}),
        )
    failed = [key.host for key, result in results.items() if isinstance(result, LbError)]
    assert failed == ["ssh://root@127.0.0.5:9"]
    assert isinstance(results[many[4].key], HostUnreachable)
    assert len(results) == 10
    assert len(lines) == 9
    assert sorted(os.listdir(folder)) == sorted(f"{at}.yaml" for at in range(1, 11) if at != 5)
    found = await look(lab, *many)
    assert [isinstance(each, LbError) for each in found] == [at == 5 for at in range(1, 11)]


async def test_a_step_that_fails_stops_not_the_next_one_of_its_host(lab: HostLab) -> None:
    bad, good = lab.instance(image="localhost/nothing:1"), lab.instance()
    done: list[tuple[str, bool]] = []
    with lab.space.entered():
        await carry_out_all(
            [step_of(Action.CREATE, each) for each in (bad, good)],
            lambda step, text: None,
            lambda step, result: done.append((step.name, isinstance(result, LbError))),
        )
    assert done == [(bad.name, True), (good.name, False)]


@pytest.mark.parametrize("package", ["docker", "asyncssh"])
async def test_a_package_that_is_not_installed_is_named(
    lab: HostLab, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (found,) = await look(lab, lab.instance(ssh=lab.access() if package == "asyncssh" else None))
    assert isinstance(found, ConfigError)
    assert str(found) == f"the Python package {package} is needed and not installed: pip install 'lbagent[apilb]'"


async def test_a_host_key_that_is_not_trusted_changes_nothing(lab: HostLab) -> None:
    other = lab.folder / "hk"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other))
    wanted = lab.instance(ssh=lab.access(host_key=other.with_suffix(".pub").read_text()))
    with pytest.raises(Refused, match="hostKey: ssh-ed25519 AAAA"):
        await lab.do(Action.CREATE, wanted)
    assert wanted.name not in lab.names()


async def test_a_way_that_changes_is_no_other_container(lab: HostLab) -> None:
    wanted = lab.instance(ssh=lab.access())
    recorded = await lab.do(Action.CREATE, wanted)
    key = Secret(lab.sshd.client_key.read_text())
    found = await look_at(lab, replace(wanted, ssh=lab.access(password=None, private_key=key, retry_timeout=12.0)))
    assert (found.container_id, found.spec_matches, found.ours) == (recorded.container_id, True, True)


async def test_the_same_socket_by_ssh_that_is_no_runtime(lab: HostLab) -> None:
    wanted = lab.instance(ssh=lab.access(), docker_host="unix:///nothing.sock")
    (found,) = await look(lab, wanted)
    assert isinstance(found, HostUnreachable)
    assert "/nothing.sock could not be opened" in str(found)


async def test_a_host_is_asked_in_time_however_many_there_are(lab: HostLab) -> None:
    """No figure: on a busy machine a test can only check that 30 hosts do not take 30 times as long."""
    many = [
        lab.instance(
            mode=Mode.NATIVE, name="lb", host_config_path="/nothing/x.yaml", ssh=lab.access(address=f"127.0.1.{at}")
        )
        for at in range(1, 31)
    ]
    began = time.monotonic()
    await look(lab, many[0])
    one = time.monotonic() - began
    began = time.monotonic()
    assert await look(lab, *many) == [Observed()] * 30
    print(f"one {one:.2f} s, thirty {time.monotonic() - began:.2f} s")
    with pytest.raises(HostUnreachable):
        await carry_out(step_of(Action.CREATE, replace(many[0], ssh=lab.access(port=9, retry_timeout=0.0))), print)
