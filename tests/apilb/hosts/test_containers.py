"""Containers of HAProxy on a host with a real podman: created, found again, reloaded, repaired, removed; others stay."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbagent.apilb.hosts import PartlyDone, container_step, observe
from lbagent.apilb.hosts.container_runtime import ContainerRuntime
from lbagent.apilb.instance import Instance
from lbagent.apilb.instance_plan import wanted_text
from lbagent.apilb.plan_records import Action, Observed, RecordedInstance
from lbagent.errors import LbError, NotFound, Refused
from tests.apilb.hosts.host_lab import POOL, HostLab
from tests.lab.podman import IMAGE

pytestmark = pytest.mark.root


async def look(item: Instance | RecordedInstance) -> Observed:
    found = (await observe([item]))[item.key]
    if isinstance(found, LbError):
        raise found
    return found


def path_of(instance: Instance) -> Path:
    return Path(instance.host_config_path)


async def test_a_container_is_made_as_the_seed_makes_it(lab: HostLab) -> None:
    wanted = lab.instance()
    with lab.servers(10001):
        recorded = await lab.do(Action.CREATE, wanted)
        lab.wait_answer(wanted, "10001")
    found = lab.inspect(wanted.name)
    assert recorded.container_id == found["Id"]
    assert found["HostConfig"]["NetworkMode"] == "host"
    assert found["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert found["Config"]["User"] == "65534"
    assert found["Config"]["Labels"] == {"io.lbagent.pool": POOL}
    (mount,) = found["Mounts"]
    assert (mount["Source"], mount["RW"]) == (str(path_of(wanted).parent), False)
    file, folder = path_of(wanted).stat(), path_of(wanted).parent.stat()
    assert (stat.S_IMODE(file.st_mode), file.st_uid) == (0o600, 65534)
    assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, 65534)
    assert path_of(wanted).read_text() == wanted_text(wanted) == recorded.config_text
    assert "created and started" in lab.said[0] or "started" in lab.said[0]
    assert len(lab.said) == 1


async def test_what_was_made_is_found_as_it_was_made(lab: HostLab) -> None:
    wanted = lab.instance()
    recorded = await lab.do(Action.CREATE, wanted)
    for item in (wanted, recorded):
        found = await look(item)
        assert found == Observed(
            container_id=recorded.container_id,
            status="running",
            image=IMAGE,
            ours=True,
            spec_matches=True,
            file_text=wanted_text(wanted),
        )
    other = replace(wanted, host_config_path=str(lab.folder / "elsewhere" / "haproxy.cfg"))
    assert (await look(other)).spec_matches is False
    assert (await look(replace(wanted, pool="other"))).ours is False


async def test_a_taken_name_is_refused_and_nothing_is_changed(lab: HostLab) -> None:
    wanted = lab.instance()
    lab.podman.run("create", "--name", wanted.name, IMAGE, "haproxy", "-v")
    with pytest.raises(Refused, match=f"a container {wanted.name} exists and is not lbagent's"):
        await lab.do(Action.CREATE, wanted)
    assert not path_of(wanted).exists()
    assert not lab.inspect(wanted.name)["Config"]["Labels"]


async def test_a_missing_image_is_never_pulled_unasked(lab: HostLab) -> None:
    wanted = lab.instance(image="localhost/nothing:1")
    with pytest.raises(NotFound, match=r"localhost/nothing:1 is missing, and is pulled only on request.*--pull"):
        await lab.do(Action.CREATE, wanted)
    assert not path_of(wanted).exists()
    with pytest.raises(LbError, match="localhost/nothing:1"):  # no registry is there to answer
        await lab.do(Action.CREATE, wanted, pull=True)
    assert not path_of(wanted).exists()


class Load:
    """Connections in sequence in several threads, each with a request; failures are recorded."""

    def __init__(self, lab: HostLab, instance: Instance, threads: int = 3) -> None:
        self.answers: list[str] = []
        self.failures: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(lab, instance)) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _work(self, lab: HostLab, instance: Instance) -> None:
        while not self._over.is_set():
            try:
                self.answers.append(lab.ask(instance))
            except OSError as error:
                self.failures.append(repr(error))

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


async def test_a_changed_file_is_live_without_a_failed_connection(lab: HostLab) -> None:
    servers = [("127.0.0.1:10001",), ("127.0.0.1:10001", "127.0.0.1:10002"), ("127.0.0.1:10002",)]
    wanted = lab.instance(servers=servers[0])
    with lab.servers(10001, 10002):
        recorded = await lab.do(Action.CREATE, wanted)
        before = path_of(wanted).stat().st_ino
        lab.wait_answer(wanted, "10001")
        load = Load(lab, wanted)
        try:
            for each in servers[1:] * 3:
                recorded = await lab.do(Action.UPDATE, replace(wanted, servers=each), recorded)
                count = len(load.answers)
                await asyncio.to_thread(_wait_more, load, count + 30)
        finally:
            load.end()
        assert load.failures == []
        assert len(load.answers) > 100
        lab.wait_answer(wanted, "10002")
    assert path_of(wanted).stat().st_ino != before
    assert lab.inspect(wanted.name)["RestartCount"] == 0
    assert lab.said == [f"{wanted.host_config_path} written; reloaded"]


def _wait_more(load: Load, count: int) -> None:
    from tests.lab.netns import wait_for

    wait_for(lambda: len(load.answers) >= count or load.failures, "more answers", 60)


async def test_a_removed_server_gets_no_connection_after_the_step(
    lab: HostLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_step, "UP_S", 0.2)  # the step waits for the new worker, not for a time
    wanted = lab.instance(servers=("127.0.0.1:10001", "127.0.0.1:10002"))
    with lab.servers(10001, 10002):
        recorded = await lab.do(Action.CREATE, wanted)
        lab.wait_answer(wanted, "10001")
        for server in ("10002", "10001", "10002"):
            recorded = await lab.do(Action.UPDATE, replace(wanted, servers=(f"127.0.0.1:{server}",)), recorded)
            assert {lab.ask(wanted) for _ in range(10)} == {server}


async def test_a_reload_that_haproxy_drops_is_said_again(lab: HostLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAProxy drops the signal at its start: 40 of 40 signals right after "Loading success"."""
    real, signals = ContainerRuntime.reload, []

    async def first_is_lost(self: ContainerRuntime, container_id: str, name: str) -> None:
        signals.append(name)
        if len(signals) > 1:
            await real(self, container_id, name)

    monkeypatch.setattr(ContainerRuntime, "reload", first_is_lost)
    wanted = lab.instance()
    with lab.servers(10001, 10002):
        recorded = await lab.do(Action.CREATE, wanted)
        lab.wait_answer(wanted, "10001")
        await lab.do(Action.UPDATE, replace(wanted, servers=("127.0.0.1:10002",)), recorded)
        assert {lab.ask(wanted) for _ in range(10)} == {"10002"}
    assert len(signals) >= 2


async def test_a_file_that_haproxy_does_not_take_changes_nothing(lab: HostLab) -> None:
    wanted = lab.instance()
    with lab.servers(10001):
        recorded = await lab.do(Action.CREATE, wanted)
        bad = replace(wanted, servers=("no-such-host.invalid:6443",))
        with pytest.raises(
            LbError, match=r"HAProxy rejects the new .*no-such-host.invalid.*the old one stays in force"
        ):
            await lab.do(Action.UPDATE, bad, recorded)
        assert path_of(wanted).read_text() == wanted_text(wanted)
        assert os.listdir(path_of(wanted).parent) == ["haproxy.cfg"]
        lab.wait_answer(wanted, "10001")


async def test_a_haproxy_that_does_not_stay_up_is_told_and_its_container_is_known(lab: HostLab) -> None:
    wanted = lab.instance()
    port = int(wanted.bind_address.rpartition(":")[2])
    with lab.space.entered():
        listener = socket.create_server(("127.0.0.1", port))
    with (
        listener,
        pytest.raises(PartlyDone, match=rf"{wanted.name}: HAProxy ends: .*(?i:cannot bind).*{port}") as caught,
    ):
        await lab.do(Action.CREATE, wanted)
    recorded = caught.value.recorded
    assert recorded.container_id == lab.inspect(wanted.name)["Id"]
    with lab.servers(10001):
        again = await lab.update_once_free(wanted, recorded)
        assert again.container_id == recorded.container_id
        lab.wait_answer(wanted, "10001")


async def test_a_new_bind_that_is_taken_leaves_the_old_one(lab: HostLab) -> None:
    wanted, other = lab.instance(), lab.instance()
    with lab.servers(10001):
        recorded = await lab.do(Action.CREATE, wanted)
        with lab.space.entered():
            listener = socket.create_server(("127.0.0.1", int(other.bind_address.rpartition(":")[2])))
        changed = replace(wanted, bind_address=other.bind_address)
        with (
            listener,
            pytest.raises(LbError, match=r"rejects the new .*(?i:cannot bind).*its worker serves the old one"),
        ):
            await lab.do(Action.UPDATE, changed, recorded)
        lab.wait_answer(wanted, "10001")
        await lab.do(Action.UPDATE, changed, recorded)
        lab.wait_answer(changed, "10001")


async def test_drift_is_found_and_mended(lab: HostLab) -> None:
    wanted = lab.instance()
    recorded = await lab.do(Action.CREATE, wanted)
    with lab.servers(10001):
        lab.podman.run("stop", "--time", "1", wanted.name)
        assert (await look(recorded)).status == "exited"
        recorded = await lab.do(Action.START, wanted, recorded)
        lab.wait_answer(wanted, "10001")

        path_of(wanted).write_text("edited\n")
        assert (await look(recorded)).file_text == "edited\n"
        recorded = await lab.do(Action.UPDATE, wanted, recorded)
        assert path_of(wanted).read_text() == wanted_text(wanted)

        path_of(wanted).unlink()
        assert (await look(recorded)).file_text is None
        recorded = await lab.do(Action.UPDATE, wanted, recorded)
        assert path_of(wanted).read_text() == wanted_text(wanted)

        lab.podman.run("pause", wanted.name)
        assert (await look(recorded)).status == "paused"
        recorded = await lab.do(Action.START, wanted, recorded)
        lab.wait_answer(wanted, "10001")

        lab.podman.run("rm", "--force", "--time", "0", wanted.name)
        assert (await look(recorded)).status == "gone"
        again = await lab.do(Action.CREATE, wanted, recorded)
        assert again.container_id != recorded.container_id
        lab.wait_answer(wanted, "10001")


async def test_a_folder_that_was_deleted_is_made_again_and_its_container_with_it(lab: HostLab) -> None:
    """The mount of a running container is still the deleted folder."""
    wanted = lab.instance()
    folder = path_of(wanted).parent
    with lab.servers(10001):
        recorded = await lab.do(Action.CREATE, wanted)
        shutil.rmtree(folder)
        again = await lab.do(Action.UPDATE, wanted, recorded)
        assert again.container_id != recorded.container_id
        assert (
            f"container {recorded.container_id[:12]} removed: its mount is of a folder that was deleted" in lab.said[0]
        )
        assert path_of(wanted).read_text() == wanted_text(wanted)
        lab.wait_answer(wanted, "10001")
        assert (await look(again)).container_id == again.container_id
        assert (await lab.do(Action.UPDATE, wanted, again)).container_id == again.container_id

        # deleted, and restored from a copy: the file is right, and the container does not see it
        shutil.copytree(folder, copy := folder.with_name("copy"))
        shutil.rmtree(folder)
        copy.rename(folder)
        for path in (folder, path_of(wanted)):
            os.chown(path, 65534, 65534)
        third = await lab.do(Action.UPDATE, wanted, replace(again, config_text="before"))
        assert third.container_id != again.container_id
        lab.wait_answer(wanted, "10001")


async def test_a_step_that_was_cut_off_is_ended_by_the_next(lab: HostLab) -> None:
    """The process was killed after the creation of the container, before the write of the state."""
    wanted = lab.instance()
    lost = await lab.do(Action.CREATE, wanted)
    again = await lab.do(Action.CREATE, wanted, None)
    assert again.container_id == lost.container_id
    draft = path_of(wanted).parent / ".haproxy.cfg.lbagent-new"
    draft.write_text("half")
    changed = replace(wanted, servers=("127.0.0.1:10002",))
    await lab.do(Action.UPDATE, changed, again)
    assert os.listdir(path_of(wanted).parent) == ["haproxy.cfg"]


async def test_what_differs_is_recreated_and_what_moved_leaves_nothing(lab: HostLab) -> None:
    wanted = lab.instance()
    recorded = await lab.do(Action.CREATE, wanted)
    moved = replace(wanted, host_config_path=str(lab.folder / f"{wanted.name}-moved" / "other.cfg"))
    with lab.servers(10001):
        again = await lab.do(Action.RECREATE, moved, recorded)
        lab.wait_answer(moved, "10001")
    assert again.container_id != recorded.container_id
    assert not path_of(wanted).exists()
    assert (await look(moved)).spec_matches


async def test_only_what_is_ours_is_removed(lab: HostLab) -> None:
    wanted = lab.instance()
    recorded = await lab.do(Action.CREATE, wanted)
    lab.podman.run("rm", "--force", "--time", "0", wanted.name)
    lab.podman.run("create", "--name", wanted.name, IMAGE, "haproxy", "-v")  # the operator's own
    path_of(wanted).write_text("# the operator's own\n")
    assert await lab.do(Action.REMOVE, None, recorded) is None
    assert wanted.name in lab.names()
    assert path_of(wanted).read_text() == "# the operator's own\n"
    assert "stays: lbagent did not write it" in lab.said[0]


async def test_a_removed_one_leaves_neither_container_nor_file(lab: HostLab) -> None:
    wanted, neighbour = lab.instance(), lab.instance()
    beside = replace(neighbour, host_config_path=str(path_of(wanted).parent / "beside.cfg"))
    recorded = await lab.do(Action.CREATE, wanted)
    await lab.do(Action.CREATE, beside)
    assert await lab.do(Action.REMOVE, None, recorded) is None
    assert wanted.name not in lab.names()
    assert os.listdir(path_of(wanted).parent) == ["beside.cfg"]
    assert (await look(beside)).status == "running"
    assert await lab.do(Action.REMOVE, None, recorded) is None  # again: it does not exist any more


async def test_a_hook_gets_its_words_as_they_are(lab: HostLab) -> None:
    target = lab.folder / "hook's words"
    wanted = lab.instance(post_start=("cp", str(lab.folder / "server.crt"), str(target)))
    recorded = await lab.do(Action.CREATE, wanted)
    assert target.exists()
    target.unlink()
    await lab.do(Action.UPDATE, wanted, recorded)
    assert not target.exists()  # only after a start


async def test_a_hook_that_fails_is_told_and_the_container_is_known(lab: HostLab) -> None:
    wanted = lab.instance(post_start=("ls", "/nothing $HOME"))
    with pytest.raises(PartlyDone, match=r"postStart: ls ended with 2: .*/nothing \$HOME") as caught:
        await lab.do(Action.CREATE, wanted)
    assert caught.value.recorded.container_id == lab.inspect(wanted.name)["Id"]
    missing = lab.instance(post_start=("no-such-program",))
    with pytest.raises(PartlyDone, match="postStart: no-such-program: No such file"):
        await lab.do(Action.CREATE, missing)
