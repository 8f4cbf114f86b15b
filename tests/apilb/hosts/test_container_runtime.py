"""Answers at a runtime's socket: Docker's own errors, those of other servers, none."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lbagent.apilb.hosts import carry_out, container_runtime, observe
from lbagent.apilb.hosts.container_runtime import ContainerRuntime
from lbagent.apilb.hosts.container_spec import ContainerSpec, image_name, spec_matches
from lbagent.apilb.instance import Instance
from lbagent.apilb.plan_records import Action, Step
from lbagent.errors import ConfigError, HostUnreachable, LbError, Refused
from tests.apilb.hosts.fake_runtime import VERSION, fake_docker, no_runtime

SPEC = ContainerSpec(pool="p", name="lb", image="haproxy:3", host_config_path="/etc/haproxy/haproxy.cfg")


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lbrt-") as folder:
        yield Path(folder) / "docker.sock"


def instance(socket: Path, **words: Any) -> Instance:
    usual: dict[str, Any] = {
        "pool": "p",
        "name": "lb",
        "bind_address": "127.0.0.1:1",
        "servers": ("a:1",),
        "docker_host": f"unix://{socket}",
    }
    return Instance(**{**usual, "host_config_path": str(socket.parent / "cfg" / "x.cfg"), **words})


async def seen(item: Instance) -> object:
    return (await observe([item]))[item.key]


async def error_of(item: Instance) -> str:
    found = await seen(item)
    assert isinstance(found, HostUnreachable), found
    assert found.exit_code == 5
    return str(found)


def _write_file(path: Path) -> None:
    path.write_text("")


async def test_a_socket_that_is_not_there(socket: Path) -> None:
    assert await error_of(instance(socket)) == (
        f"direct: unix://{socket}: No such file or directory; is Docker or podman's service running?"
    )
    _write_file(socket)
    assert await error_of(instance(socket)) == f"direct: unix://{socket} is not a socket"
    with no_runtime(socket.with_name("dead"), b""):
        pass
    assert "is neither Docker nor podman" in await error_of(instance(socket.with_name("dead")))


@pytest.mark.parametrize(
    "said",
    [b"220 mail ESMTP\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"\x00" * 100],
    ids=["mail", "web", "bytes"],
)
async def test_a_socket_that_is_no_runtime(socket: Path, said: bytes) -> None:
    with no_runtime(socket, said):
        assert await error_of(instance(socket)) == f"direct: the server at unix://{socket} is neither Docker nor podman"


async def test_a_web_server_is_no_runtime(socket: Path) -> None:
    with fake_docker(socket, {"GET /version": (200, {"hello": "world"})}) as asked:
        assert "is neither Docker nor podman" in await error_of(instance(socket))
    assert asked == ["GET /_ping", "GET /version"]
    with fake_docker(socket.with_name("b"), {}):  # 404 for all
        assert isinstance(await seen(instance(socket.with_name("b"))), LbError)


async def test_a_socket_that_stays_silent_is_given_up(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_runtime, "ANSWER_S", 0.5)
    with no_runtime(socket, b""):
        assert await error_of(instance(socket)) == f"direct: unix://{socket} did not answer within 0.5 s"


async def test_versions(socket: Path) -> None:
    with fake_docker(socket, {"GET /version": (200, {"ApiVersion": "1.24"})}):
        assert "has version 1.24 of Docker's API; 1.38 is needed" in await error_of(instance(socket))
    newer = {"ApiVersion": "1.52", "MinAPIVersion": "1.44"}
    with fake_docker(socket.with_name("b"), {"GET /version": (200, newer)}) as asked:
        await seen(instance(socket.with_name("b")))
    assert asked[2] == "GET /v1.44/containers/lb/json"


@pytest.mark.root  # any other user writes files by a container
async def test_podman_is_not_asked_for_its_version(socket: Path) -> None:
    podman = {"GET /version": (200, VERSION), "GET /_ping": (200, b"OK")}
    with fake_docker(socket, podman, Api_Version="1.41", Libpod_Api_Version="4.3.1") as asked:
        await seen(instance(socket))
    assert asked == ["GET /_ping", "GET /v1.38/containers/lb/json"]
    old = podman | {"GET /version": (200, {"ApiVersion": "1.24"})}
    with fake_docker(socket.with_name("b"), old, Api_Version="1.24", Libpod_Api_Version="1.0"):
        assert "has version 1.24 of Docker's API" in await error_of(instance(socket.with_name("b")))


async def test_only_unix_sockets(socket: Path) -> None:
    found = await seen(instance(socket, docker_host="tcp://10.0.0.1:2375"))
    assert isinstance(found, ConfigError)
    assert "only a unix socket is possible" in str(found)


@pytest.mark.root  # any other user writes files by a container
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            409,
            'Conflict. The container name "/lb" is already in use by container "0123". You have to remove that container.',
        ),
        (
            500,
            'creating container storage: the container name "lb" is already in use by 0123. You have to remove that container',
        ),
    ],
    ids=["Docker", "podman"],
)
async def test_a_name_that_is_taken_meanwhile_is_refused(socket: Path, status: int, message: str) -> None:
    answers = {
        "GET /version": (200, VERSION),
        "GET haproxy:3.0.4-alpine/json": (200, {"Id": "1"}),
        "POST /containers/create": (status, {"message": message}),
    }
    item = instance(socket)
    step = Step(pool="p", name="lb", host="direct", action=Action.CREATE, instance=item)
    with fake_docker(socket, answers), pytest.raises(Refused, match="a container lb exists and is not lbagent's"):
        await carry_out(step, print)


async def test_what_a_runtime_says_is_passed_on_in_one_line(socket: Path) -> None:
    answers = {"GET /version": (200, VERSION), "GET /containers/lb/json": (500, {"message": "database\nis locked"})}
    with fake_docker(socket, answers):
        found = await seen(instance(socket))
    assert str(found) == f"direct: lb: unix://{socket} returned 500: database is locked"


async def test_a_name_is_not_the_begin_of_an_id(socket: Path) -> None:
    other = {"Id": "lb3f", "Name": "/someone", "State": {"Status": "running"}, "Config": {}}
    with fake_docker(socket, {"GET /version": (200, VERSION), "GET /containers/lb/json": (200, other)}):
        runtime = ContainerRuntime("direct", f"unix://{socket}", str(socket))
        assert await runtime.inspect(name="lb") is None
        await runtime.close()


def found(**words: object) -> dict[str, object]:
    config = {
        "User": "65534",
        "Entrypoint": ["haproxy"],
        "Cmd": ["-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"],
        "Labels": {"io.lbagent.pool": "p"},
    }
    host = {"NetworkMode": "host", "RestartPolicy": {"Name": "unless-stopped"}}
    mount = {"Type": "bind", "Source": "/etc/haproxy", "Destination": "/usr/local/etc/haproxy", "RW": False}
    return {
        "Config": {k: words.get(k, v) for k, v in config.items()},
        "HostConfig": {k: words.get(k, v) for k, v in host.items()},
        "Mounts": words.get("Mounts", [{**mount, **{k: v for k, v in words.items() if k in mount}}]),
    }


def test_a_container_is_compared_with_what_it_is_to_be() -> None:
    assert spec_matches(found(), SPEC)
    different: tuple[dict[str, Any], ...] = (
        {"User": "0"},
        {"Entrypoint": None},
        {"Cmd": ["-f", "/usr/local/etc/haproxy/haproxy.cfg"]},
        {"Labels": None},
        {"Labels": {"io.lbagent.pool": "q"}},
        {"NetworkMode": "bridge"},
        {"RestartPolicy": {"Name": "always"}},
        {"RW": True},
        {"Source": "/etc/haproxy/haproxy.cfg"},  # the seed's: only the file
        {"Type": "volume"},
        {"Mounts": []},
        {"Mounts": None},
    )
    for words in different:
        assert not spec_matches(found(**words), SPEC), words


def test_podmans_names_of_images_are_those_of_docker() -> None:
    assert image_name("docker.io/library/haproxy:3", "haproxy:3") == "haproxy:3"
    assert image_name("docker.io/library/haproxy:latest", "haproxy") == "haproxy"
    assert image_name("docker.io/o/haproxy:3", "o/haproxy:3") == "o/haproxy:3"
    assert image_name("quay.io/haproxy:3", "haproxy:3") == "quay.io/haproxy:3"
    assert image_name("haproxy@sha256:00", "haproxy") == "haproxy@sha256:00"
