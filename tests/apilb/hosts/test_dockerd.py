"""The same with a real dockerd, whose answers differ from podman's in places."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.apilb.hosts import PartlyDone, observe, server_health
from lbagent.apilb.hosts.container_runtime import ContainerRuntime
from lbagent.apilb.hosts.container_spec import ContainerSpec
from lbagent.apilb.instance import Instance
from lbagent.apilb.instance_plan import wanted_text
from lbagent.apilb.plan_records import Action, Observed
from lbagent.errors import LbError, NotFound, Refused
from tests.apilb.hosts.host_lab import HostLab
from tests.lab.dockerd import IMAGE, Dockerd

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def dockerd(lab: HostLab) -> Iterator[Dockerd]:
    folder = Path(tempfile.mkdtemp(prefix="lbdocker-"))
    dockerd = Dockerd(folder / "d", lab.space)
    try:
        yield dockerd
    finally:
        dockerd.close()
        shutil.rmtree(folder, ignore_errors=True)


def instance(lab: HostLab, dockerd: Dockerd, **words: Any) -> Instance:
    return lab.instance(**{"docker_host": dockerd.docker_host, "image": IMAGE, **words})


async def status_of(item: Instance) -> str:
    found = (await observe([item]))[item.key]
    assert isinstance(found, Observed), found
    return found.status


async def test_a_life_with_dockerd(lab: HostLab, dockerd: Dockerd) -> None:
    wanted = instance(lab, dockerd)
    with lab.servers(10001, 10002):
        recorded = await lab.do(Action.CREATE, wanted)
        lab.wait_answer(wanted, "10001")
        found = (await observe([wanted]))[wanted.key]
        assert found == Observed(
            container_id=recorded.container_id, status="running", image=IMAGE, ours=True, file_text=wanted_text(wanted)
        )
        changed = replace(wanted, servers=("127.0.0.1:10002",))
        recorded = await lab.do(Action.UPDATE, changed, recorded)
        lab.wait_answer(changed, "10002")
        (server,) = (await server_health([changed]))[changed.key]
        assert (server["address"], server["up"]) == ("127.0.0.1:10002", True)
        with pytest.raises(LbError, match=r"rejects the new .*no-such-host.invalid"):
            await lab.do(Action.UPDATE, replace(wanted, servers=("no-such-host.invalid:1",)), recorded)
        for verb, status in (("pause", "paused"), ("stop", "exited")):
            dockerd.run(verb, recorded.container_id)
            assert await status_of(changed) == status
            recorded = await lab.do(Action.START, changed, recorded)
            lab.wait_answer(changed, "10002")
    await lab.do(Action.REMOVE, None, recorded)
    assert await status_of(wanted) == "gone"


async def test_dockerds_refusals(lab: HostLab, dockerd: Dockerd) -> None:
    taken = instance(lab, dockerd)
    dockerd.run("create", "--name", taken.name, IMAGE, "haproxy", "-v")
    with pytest.raises(Refused, match=f"{taken.name} exists and is not lbagent's"):
        await lab.do(Action.CREATE, taken)
    runtime = ContainerRuntime("direct", dockerd.docker_host, str(dockerd.socket))
    with pytest.raises(Refused, match=f"{taken.name} exists"):  # in use since the check: 409
        await runtime.create(ContainerSpec(pool="p", name=taken.name, image=IMAGE, host_config_path="/etc/hostname"))
    await runtime.close()
    missing = instance(lab, dockerd, image="nothing:1")
    with pytest.raises(NotFound, match="nothing:1 is missing, and is pulled only on request"):
        await lab.do(Action.CREATE, missing)
    with pytest.raises(LbError, match="nothing:1"):
        await lab.do(Action.CREATE, missing, pull=True)


async def test_a_bind_that_is_taken_with_dockerd(lab: HostLab, dockerd: Dockerd) -> None:
    wanted = instance(lab, dockerd)
    with lab.space.entered():
        listener = socket.create_server(("127.0.0.1", int(wanted.bind_address.rpartition(":")[2])))
    with listener, pytest.raises(PartlyDone, match="HAProxy ends: .*(?i:cannot bind)") as caught:
        await lab.do(Action.CREATE, wanted)
    with lab.servers(10001):
        await lab.update_once_free(wanted, caught.value.recorded)
        lab.wait_answer(wanted, "10001")


async def test_a_user_of_dockerd_who_is_not_root(
    lab: HostLab, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    wanted = instance(lab, dockerd)
    with lab.servers(10001, 10002):
        recorded = await lab.do(Action.CREATE, wanted)
        lab.wait_answer(wanted, "10001")
        changed = replace(wanted, servers=("127.0.0.1:10002",))
        recorded = await lab.do(Action.UPDATE, changed, recorded)
        lab.wait_answer(changed, "10002")
    await lab.do(Action.REMOVE, None, recorded)
    assert f"{wanted.host_config_path} removed" in lab.said[0]
    assert "-config" not in dockerd.run("ps", "--all", "--format", "{{.Names}}")
