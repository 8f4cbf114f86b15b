"""Pool files, hosts and the state together: the commands of a user, with a real podman and sshd."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import yaml

from lbagent.apilb.files.state_lock import state_locked
from lbagent.apilb.instance import Instance
from tests.apilb.hosts.host_lab import HostLab
from tests.lab.netns import run, wait_for
from tests.lab.podman import IMAGE
from tests.lab.topology import ROOT

pytestmark = pytest.mark.root


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Files:
    """config.yaml in a separate folder, and commands with it."""

    def __init__(self, lab: HostLab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.config, self.state = folder / "config.yaml", folder / "state.yaml"
        self.instances: list[Instance] = []

    def instance(self, **words: object) -> Instance:
        made = self.lab.instance(**words)
        self.instances.append(made)
        return made

    def write(self, *instances: Instance, more: str = "") -> None:
        entries = []
        for each in instances:
            entry = {
                "name": each.name,
                "image": each.image,
                "bindAddress": each.bind_address,
                "servers": list(each.servers),
            }
            entry |= {"hostConfigPath": each.host_config_path, "mode": str(each.mode)}
            entries.append(entry | {"runtime": {"docker": {"host": each.docker_host}}})
        pools = {"controllers": {"apiLoadBalancers": entries}} if instances else {}
        self.config.write_text(yaml.dump({"apiLoadBalancerPools": pools}) + more)

    def argv(self, verb: str, *words: str) -> list[str]:
        return self.lab.space.command([sys.executable, "-m", "lbagent", "apilb", verb, "-f", str(self.config), *words])

    def __call__(self, verb: str, *words: str, text: str = "") -> Done:
        done = subprocess.run(self.argv(verb, *words), input=text, capture_output=True, text=True, cwd=ROOT, env=CLEAN)
        assert "Traceback" not in done.stderr
        assert "defect of lbagent" not in done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("LBAGENT_") and key != "SSH_AUTH_SOCK"}
NOTHING = (0, "No changes required\n", "")


@pytest.fixture
def files(lab: HostLab, tmp_path: Path) -> Iterator[Files]:
    files = Files(lab, tmp_path)
    yield files
    for each in files.instances:
        if each.name in lab.names():
            lab.podman.run("rm", "--force", "--time", "0", each.name)


def actions(done: Done) -> list[tuple[str, str]]:
    return [(row["name"], row["action"]) for row in msgspec.json.decode(done.out)]


def test_apply_and_apply_again(files: Files) -> None:
    one = files.instance()
    files.write(one)
    with files.lab.servers(10001):
        assert files("plan", "-o", "json").code == 1
        done = files("apply", "--yes")
        assert (done.code, done.err) == (0, "")
        steps = [line for line in done.out.splitlines() if line.startswith("controllers/")]
        assert re.fullmatch(
            rf"controllers/{one.name} on direct: .*haproxy.cfg written; container \w+ created; started", steps[0]
        )
        files.lab.wait_answer(one, "10001")
        done = files("status", "-o", "json")
        (row,) = msgspec.json.decode(done.out)
        assert (done.code, done.err, row["status"]) == (0, "", "running")
        assert [(each["address"], each["up"]) for each in row["servers"]] == [("127.0.0.1:10001", True)]
    assert files.state.stat().st_mode & 0o7777 == 0o600
    assert files("apply") == NOTHING
    assert files("plan") == NOTHING
    assert actions(files("plan", "-o", "json")) == [(one.name, "none")]
    found = files.lab.inspect(one.name)
    known = yaml.safe_load(files.state.read_text())["state"]["apiLoadBalancerPools"]["controllers"]
    assert known[one.name]["container"]["status"] == {"id": found["Id"], "status": "running"}
    assert found["Config"]["Labels"]["io.lbagent.pool"] == "controllers"


def test_drift_is_found_and_mended(files: Files) -> None:
    one = files.instance()
    files.write(one)
    assert files("apply", "--yes").code == 0
    path, podman = Path(one.host_config_path), files.lab.podman

    def edit() -> None:
        path.write_text(path.read_text() + "# mine\n")

    drifts = {
        "start": lambda: podman.run("stop", "--time", "1", one.name),
        "create": lambda: podman.run("rm", "--force", "--time", "0", one.name),
        "update": edit,
        "update, the file is gone": path.unlink,
        "update, the state is gone": files.state.unlink,
    }
    for action, drift in drifts.items():
        drift()
        done = files("plan", "-o", "json")
        assert (done.code, actions(done)) == (1, [(one.name, action.partition(",")[0])]), action
        assert files("apply", "--yes").code == 0, action
        assert files("plan") == NOTHING, action
        assert files.lab.inspect(one.name)["State"]["Status"] == "running"


def test_while_another_changes_the_hosts_nothing_is_changed(files: Files) -> None:
    one = files.instance()
    files.write(one)
    with state_locked(str(files.state)):
        for verb in ("apply", "destroy"):
            done = files(verb, "--yes")
            assert (done.code, done.out, len(done.err.splitlines())) == (4, "", 1), done.err
            assert f"{files.state}.lock is locked by pid {os.getpid()}, " in done.err
        assert files("plan").code == 1
    assert not files.state.exists()
    assert one.name not in files.lab.names()
    assert files("apply", "--yes").code == 0
    assert {each.name for each in files.folder.iterdir()} == {"config.yaml", "state.yaml"}


def test_servers_change_under_load(files: Files) -> None:
    """No connection fails, and none goes to a server that was removed."""
    one = files.instance(servers=("127.0.0.1:10001",))
    files.write(one)
    answers: list[str] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            try:
                answers.append(files.lab.ask(one))
            except OSError as error:
                answers.append(f"{error}")

    def last_is(port: str) -> bool:
        return answers[-1] == port

    with files.lab.servers(10001, 10002, 10003):
        assert files("apply", "--yes").code == 0
        files.lab.wait_answer(one, "10001")
        threads = [threading.Thread(target=load) for _ in range(3)]
        for each in threads:
            each.start()
        for servers in (("10001", "10002"), ("10002", "10003"), ("10003",)):
            changed = msgspec.structs.replace(one, servers=tuple(f"127.0.0.1:{port}" for port in servers))
            files.write(changed)
            done = files("apply", "--yes")
            assert (done.code, "reloaded" in done.out) == (0, True)
            wait_for(partial(last_is, servers[-1]), f"an answer of {servers[-1]}", 60)
        wait_for(lambda: set(answers[-50:]) == {"10003"}, "answers of 10003 alone", 60)
        stop.set()
        for each in threads:
            each.join()
    assert len(answers) > 100
    assert set(answers) == {"10001", "10002", "10003"}


def test_an_instance_and_a_pool_that_are_gone_from_the_files(files: Files) -> None:
    one, two, three = files.instance(), files.instance(), files.instance()
    files.write(one, two, three)
    assert files("apply", "--yes").code == 0
    ids = {each.name: files.lab.inspect(each.name)["Id"] for each in (two, three)}
    files.write(two, three)
    done = files("plan", "-o", "json")
    assert actions(done) == [
        (one.name, "remove"),
        (two.name, "none"),
        (three.name, "none"),
    ]  # the seed would recreate them
    assert files("apply", "--yes").code == 0
    assert one.name not in files.lab.names()
    assert not Path(one.host_config_path).exists()
    assert {name: files.lab.inspect(name)["Id"] for name in ids} == ids
    files.write()
    assert files("apply", "controllers", "--yes").code == 0
    assert not files.lab.names() & {two.name, three.name}
    assert files("apply") == NOTHING


def test_destroy(files: Files) -> None:
    one, two = files.instance(), files.instance()
    files.write(one, two)
    assert files("apply", "--yes").code == 0
    files.state.unlink()  # a container with lbagent's label is removed anyway
    assert files("destroy", "--yes").code == 0
    assert not files.lab.names() & {one.name, two.name}
    assert files("destroy") == NOTHING
    assert yaml.safe_load(files.state.read_text()) == {"state": {"apiLoadBalancerPools": {}, "version": 1}}


def test_the_state_is_written_also_on_failure(files: Files) -> None:
    one, two = files.instance(), files.instance(image="localhost/none:1")
    files.write(one, two)
    done = files("apply", "--yes")
    assert done.code == 1
    assert done.err == (
        "error: direct: the image localhost/none:1 is missing, and is pulled only on request: pull it there, or give --pull."
        " Nothing was changed\n"
    )
    assert files.state.stat().st_mode & 0o7777 == 0o600
    assert list(yaml.safe_load(files.state.read_text())["state"]["apiLoadBalancerPools"]["controllers"]) == [one.name]
    assert files("apply", "--yes").code == 3  # nothing else was to do
    files.write(one, msgspec.structs.replace(two, image=IMAGE))
    assert actions(files("plan", "-o", "json")) == [(one.name, "none"), (two.name, "create")]
    assert files("apply", "--yes").code == 0
    assert files("plan") == NOTHING


def test_a_state_that_cannot_be_written_is_told_before_anything_is_done(files: Files) -> None:
    one = files.instance()
    files.write(one)
    folder = files.folder / "full"
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder))
    try:
        (folder / "filler").write_bytes(bytes(4096))
        done = files("apply", "--yes", "--state", str(folder / "state.yaml"))
        assert (done.code, done.err) == (
            1, f"error: {folder}/state.yaml: the state cannot be written: No space left on device\n",
        )  # fmt: skip
        assert sorted(each.name for each in folder.iterdir()) == ["filler"]
    finally:
        run("umount", str(folder))
    assert one.name not in files.lab.names()
    done = files("apply", "--yes", "--state", str(folder))
    assert (done.code, done.err) == (2, f"{folder}: not a regular file\n")


def test_export_and_restore(files: Files, tmp_path: Path) -> None:
    one = files.instance()
    files.write(one)
    assert files("apply", "--yes").code == 0
    files.lab.podman.run("stop", "--time", "1", one.name)
    exported = files("export").out
    entry = yaml.safe_load(exported)["state"]["apiLoadBalancerPools"]["controllers"][one.name]
    assert entry["container"]["status"]["status"] == "exited"  # as found
    files.lab.podman.run("start", one.name)
    fresh = Files(files.lab, tmp_path / "fresh")
    fresh.folder.mkdir()
    fresh.write(one, more=files("export").out)
    assert fresh("plan") == NOTHING
    assert fresh("apply") == NOTHING
    assert fresh.state.exists()
    argv = ["-" if each == str(fresh.config) else each for each in fresh.argv("plan")]
    text = fresh.config.read_text()
    done = subprocess.run(argv, input=text, capture_output=True, text=True, cwd=fresh.folder, env=CLEAN)
    assert (done.returncode, done.stdout) == (0, "No changes required\n"), done.stderr


def test_the_seeds_container_is_taken_over(files: Files) -> None:
    """It has no label and the file itself is mounted: it is recreated, once."""
    one = files.instance()
    path = Path(one.host_config_path)
    path.parent.mkdir(parents=True)
    path.write_text("defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n")
    target = "/usr/local/etc/haproxy/haproxy.cfg"
    words = f"create --name {one.name} --network host --user 65534 --volume {path}:{target} {IMAGE} haproxy -f {target}"
    old = files.lab.podman.run(*words.split()).strip()
    runtime = {"docker": {"host": one.docker_host}}
    config = {"name": one.name, "image": IMAGE, "mounts": [{"source": str(path), "target": target}]}
    container = {"config": config, "status": {"id": old, "status": "running"}, "runtime": runtime}
    entry = {"container": container, "host": {"direct": {}}, "configFiles": {str(path): path.read_text()}}
    files.state.write_text(
        yaml.dump({"state": {"etcd": {"0": {"x": 1}}, "apiLoadBalancerPools": {"controllers": {"0": entry}}}})
    )
    files.write(one)
    assert actions(files("plan", "-o", "json")) == [(one.name, "recreate")]
    assert files("apply", "--yes").code == 0
    assert files.lab.inspect(one.name)["Id"] != old
    state = yaml.safe_load(files.state.read_text())["state"]
    assert (state["etcd"], list(state["apiLoadBalancerPools"]["controllers"])) == ({"0": {"x": 1}}, [one.name])
    assert files("apply") == NOTHING


def test_a_container_of_another_is_not_touched(files: Files) -> None:
    one = files.instance()
    files.lab.podman.run("create", "--name", one.name, IMAGE, "haproxy", "-v")
    theirs = files.lab.inspect(one.name)["Id"]
    files.write(one)
    done = files("apply", "--yes")
    assert (done.code, one.name in done.err) == (4, True)
    assert files("destroy", "--yes").code == 0
    assert files.lab.inspect(one.name)["Id"] == theirs


def test_a_file_of_another_is_not_touched(files: Files) -> None:
    one = files.instance()
    path = Path(one.host_config_path)
    path.parent.mkdir(parents=True)
    path.write_text("global\n")
    files.write(one)
    for verb in (("plan",), ("apply", "--yes")):
        done = files(*verb)
        assert (done.code, done.out) == (4, "")
        assert f"{path} on direct exists and was not written by lbagent" in done.err
    assert path.read_text() == "global\n"
    assert one.name not in files.lab.names()


def test_a_runtime_that_is_not_reached_stops_no_other(files: Files) -> None:
    one, two = files.instance(), files.instance(docker_host="unix:///nowhere.sock")
    files.write(one, two)
    done = files("plan", "-o", "json")
    assert (done.code, actions(done)) == (5, [(one.name, "create")])
    assert "/nowhere.sock" in done.err
    assert len(done.err.splitlines()) == 1
    assert files("apply", "--yes").code == 1
    assert files("apply", "--yes").code == 5
    assert one.name in files.lab.names()
    done = files("status", "-o", "json")
    rows = {row["name"]: row["status"] for row in msgspec.json.decode(done.out)}
    assert (done.code, rows[one.name]) == (5, "running")
    assert "/nowhere.sock" in rows[two.name]
    assert files("plan", "--offline").code == 1


@pytest.mark.parametrize(("answer", "code"), [("n", 4), ("y", 0)])
def test_a_terminal_is_asked(files: Files, answer: str, code: int) -> None:
    one = files.instance()
    files.write(one)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        files.argv("apply"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=CLEAN,
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    out, err = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == code
    assert f"create controllers/{one.name} on direct" in out
    assert "Change the hosts? [y/N]" in err
    assert (one.name in files.lab.names()) is (code == 0)


def test_native_mode_writes_its_file_alone(files: Files) -> None:
    from lbagent.apilb.instance import Mode

    one = files.instance(mode=Mode.NATIVE)
    path = Path(one.host_config_path)
    files.write(one)
    assert files("apply", "--yes").code == 0
    assert path.stat().st_mode & 0o7777 == 0o600
    assert one.name not in files.lab.names()
    assert files("plan") == NOTHING
    path.write_text(path.read_text() + "# mine\n")
    assert actions(files("plan", "-o", "json")) == [(one.name, "update")]
    assert files("apply", "--yes").code == 0
    path.unlink()
    assert actions(files("plan", "-o", "json")) == [(one.name, "create")]
    assert files("apply", "--yes").code == 0
    done = files("status", "-o", "json")
    (row,) = msgspec.json.decode(done.out)
    assert (done.code, row["status"]) == (0, "running")
    assert row["servers"] == [{"address": "127.0.0.1:10001", "up": None, "since": None, "last": None}]
    assert "servers of native mode are not known: " in done.err
    files.write(msgspec.structs.replace(one, mode=Mode.HAPROXY, host_config_path=f"{path.parent}2/haproxy.cfg"))
    assert files("apply", "--yes").code == 0
    assert not path.exists()
    assert one.name in files.lab.names()
    assert files("destroy", "--yes").code == 0


def test_over_ssh(files: Files) -> None:
    """Another access to the host changes nothing there; a host that is only in the state gets its pool's password."""
    one, sshd = files.instance(), files.lab.sshd
    ssh = {"address": "127.0.0.1", "password": sshd.password, "hostKey": sshd.host_key(), "retryTimeout": "30s"}

    def write(entries: list[object], **more: object) -> None:
        pool = {"ssh": ssh | more, "image": IMAGE, "runtime": {"docker": {"host": one.docker_host}}, "name": one.name}
        pool |= {"bindAddress": one.bind_address, "servers": list(one.servers), "hostConfigPath": one.host_config_path}
        files.config.write_text(
            yaml.dump({"apiLoadBalancerPools": {"controllers": pool | {"apiLoadBalancers": entries}}})
        )

    write([{}])
    done = files("apply", "--yes")
    assert (done.code, done.err) == (0, "")
    made = files.lab.inspect(one.name)["Id"]
    said = done.out + done.err + files.state.read_text()
    key = files.folder / "key"
    key.write_text(Path(sshd.client_key).read_text())
    key.chmod(0o600)
    write([{}], user="root", password="", privateKeyFile=str(key), connectionTimeout="20s")
    assert files("apply") == NOTHING
    assert files.lab.inspect(one.name)["Id"] == made
    assert "connectionTimeout: '20s'" in files.state.read_text()
    write([])
    for verb in (("plan",), ("export",), ("status", "-o", "json"), ("apply", "--yes")):
        done = files(*verb)
        assert done.code == (verb == ("plan",))
        said += done.out + done.err
    assert one.name not in files.lab.names()
    assert sshd.password not in said + files.state.read_text()
