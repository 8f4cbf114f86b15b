"""The client over TLS: certificates of a kubeconfig, a Pod's service account, tokens that change, servers that send nothing."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from lbagent.errors import LbError
from lbagent.kube import credentials_command, kube_client, kube_settings
from lbagent.kube.kube_client import ApiError, KubeClient, ServerUnreachable
from lbagent.kube.kube_settings import KubeSettings
from tests.kube.api_server import ApiServer, status
from tests.kube.cluster import kubeconfig, node
from tests.lab.netns import wait_for

NODES = "/api/v1/nodes"


CA = """[a]
database = index
new_certs_dir = .
default_md = sha256
rand_serial = yes
policy = p
copy_extensions = copyall
[p]
commonName = supplied
"""


def certificate(folder: Path, name: str, begins: str = "20200101", ends: str = "20990101") -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1, valid between two days."""
    key, cert = folder / f"{name}.key", folder / f"{name}.crt"
    (folder / "ca.cnf").write_text(CA)
    (folder / "index").write_text("")
    ask = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=api -out request"
    sign = f"openssl ca -batch -config ca.cnf -name a -selfsign -in request -notext -startdate {begins}000000Z"
    for words in (
        [*ask.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key)],
        [*sign.split(), "-enddate", f"{ends}000000Z", "-keyfile", str(key), "-out", str(cert)],
    ):
        subprocess.run(words, check=True, capture_output=True, cwd=folder)
    return key, cert


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    key, cert = certificate(tmp_path, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    server = ApiServer()
    await server.put(node())
    await server.start(tls=context)
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
def pod(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a Pod's service account; return the file of its token."""
    from kubernetes.aio.config import incluster_config

    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "server.crt"))
    assert Path(kube_settings.TOKEN_FOLDER, "token") == Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    return token


async def nodes(client: KubeClient, *, silence_s: float = 5.0) -> bytes:
    async with client.get(NODES, {"limit": "5"}, silence_s=silence_s) as answer:
        return await answer.read()


def secure(folder: Path, port: int, authority: Path) -> KubeSettings:
    path = Path(kubeconfig(folder, port, token="first"))
    text = yaml.safe_load(path.read_text())
    data = base64.b64encode(authority.read_bytes()).decode()
    text["clusters"][0]["cluster"] = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": data}
    path.write_text(yaml.safe_dump(text))
    return KubeSettings(kubeconfig=str(path), node_name="n", state_dir=str(folder / "state"))


async def test_certificates_of_a_kubeconfig_are_written_where_only_the_agent_reads(api, tmp_path) -> None:
    folder = tmp_path / "state" / kube_client.CREDENTIALS
    folder.mkdir(parents=True)
    (folder / "left-by-an-agent-that-was-killed").write_text("key")
    api.tokens = {"first"}
    client = KubeClient(secure(tmp_path, api.port, tmp_path / "server.crt"))
    assert b"node-1" in await nodes(client)
    (file,) = folder.iterdir()
    assert file.read_bytes() == (tmp_path / "server.crt").read_bytes()
    assert [stat.S_IMODE(os.stat(each).st_mode) for each in (folder, file)] == [0o700, 0o600]
    await client.close()


async def test_a_server_with_another_certificate_is_not_spoken_to(api, tmp_path) -> None:
    _, other = certificate(tmp_path, "other")
    client = KubeClient(secure(tmp_path, api.port, other))
    with pytest.raises(ServerUnreachable, match="certificate verify failed"):
        await nodes(client)
    with pytest.raises(ServerUnreachable, match="^(?!.*clock)"):
        await nodes(client)
    secure(tmp_path, api.port, tmp_path / "server.crt")  # the kubeconfig is repaired
    assert b"node-1" in await nodes(client)
    await client.close()


@pytest.mark.parametrize(
    ("begins", "ends", "words"),
    [("20990101", "20990201", "certificate is not yet valid"), ("20010101", "20010201", "certificate has expired")],
)
async def test_a_clock_that_differs_from_the_servers_is_suspected(tmp_path, begins, ends, words) -> None:
    key, cert = certificate(tmp_path, "out-of-time", begins, ends)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    server = ApiServer()
    await server.start(tls=context)
    client = KubeClient(secure(tmp_path, server.port, cert))
    with pytest.raises(ServerUnreachable, match=rf"{words}.*; this node's clock says \d+-\d+-\d+ .* UTC"):
        await nodes(client)
    await client.close()
    await server.stop()


async def test_a_watch_that_says_nothing_is_probed_by_the_kernel(api, pod) -> None:
    """Half a minute after the server's host is gone without a FIN or RST the connection breaks; missing data alone takes 150 s."""
    api.tokens = {"first"}
    client = KubeClient(KubeSettings(node_name="n"))
    query = {"watch": "1", "sendInitialEvents": "true"}
    async with client.get(NODES, query, silence_s=5.0) as answer:
        own = answer._raw.connection.transport.get_extra_info("socket")
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, interval, count = (own.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        assert idle + interval * count == 30
    await client.close()


async def test_a_pod_that_reaches_no_server_says_who_gave_the_address(api, pod) -> None:
    """That of a Service, which the agent itself serves, unless it was overridden."""
    await api.stop()
    client = KubeClient(KubeSettings(node_name="n"))
    with pytest.raises(
        ServerUnreachable, match=rf"\(127\.0\.0\.1:{api.port} by KUBERNETES_SERVICE_HOST; where that is a Service"
    ):
        await nodes(client)
    await client.close()


async def test_a_service_account_and_its_new_token(api, pod) -> None:
    api.tokens = {"first"}
    client = KubeClient(KubeSettings(node_name="n"))
    assert b"node-1" in await nodes(client)
    pod.write_text("second")
    api.tokens = {"second"}
    with pytest.raises(ApiError) as caught:
        await nodes(client)
    assert caught.value.status == 401
    assert b"node-1" in await nodes(client)
    await client.close()


async def test_passwords_of_the_home_folder_are_not_the_servers(api, pod, tmp_path, monkeypatch) -> None:
    (tmp_path / ".netrc").write_text("default login user password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    api.tokens = {"first"}
    client = KubeClient(KubeSettings(node_name="n"))
    assert b"node-1" in await nodes(client)
    await client.close()


async def test_a_proxy_that_the_environment_names_is_used(api, pod, monkeypatch) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    client = KubeClient(KubeSettings(node_name="n"))
    with pytest.raises(ServerUnreachable, match="Forbidden"):
        await nodes(client)
    assert asked == [f"CONNECT 127.0.0.1:{api.port} HTTP/1.1\r\n".encode()]
    await client.close()
    server.close()


async def test_a_refused_token_does_not_end_what_is_being_read(api, pod) -> None:
    api.tokens = {"first"}
    client = KubeClient(KubeSettings(node_name="n"))
    query = {"watch": "1", "resourceVersion": str(api.version)}
    async with client.get(NODES, query, silence_s=5) as answer:
        lines = answer.lines()
        api.tokens = {"second"}
        with pytest.raises(ApiError):
            await nodes(client)
        pod.write_text("second")
        assert b"node-1" in await nodes(client)
        await api.put(node(zone="b"))
        while b"MODIFIED" not in b"".join(await anext(lines)):  # bookmarks come first
            pass
    await client.close()


async def test_a_token_that_is_gone(api, pod) -> None:
    pod.unlink()
    client = KubeClient(KubeSettings(node_name="n"))
    with pytest.raises(ServerUnreachable, match="token file does not exist"):
        await nodes(client)
    pod.write_text("first")
    assert b"node-1" in await nodes(client)
    await client.close()


@pytest.mark.parametrize("silence_s", [0.2])
async def test_a_silent_server_counts_as_gone(api, pod, silence_s) -> None:
    client = KubeClient(KubeSettings(node_name="n"))
    assert b"node-1" in await nodes(client)
    api.is_silent = True
    began = time.monotonic()
    with pytest.raises(ServerUnreachable, match="does not answer in time"):
        await nodes(client, silence_s=silence_s)
    assert time.monotonic() - began < 4
    api.is_silent = False
    assert b"node-1" in await nodes(client)
    await client.close()


async def test_a_server_that_vanished_is_asked_on_a_new_connection(api, pod) -> None:
    """After a time-out on one connection no other is reused: idle ones may be dead, too."""
    client = KubeClient(KubeSettings(node_name="n"))
    await asyncio.gather(*(nodes(client) for _ in range(3)))  # as many connections, which wait now
    query = {"watch": "1", "resourceVersion": str(api.version), "allowWatchBookmarks": "true"}
    with pytest.raises(ServerUnreachable):
        async with client.get(NODES, query, silence_s=0.5) as answer:
            async for _ in answer.lines():
                api.vanish()
    for _ in range(3):
        assert b"node-1" in await nodes(client)
    await client.close()


async def test_errors_say_status_message_and_when_to_come_again(api, pod) -> None:
    client = KubeClient(KubeSettings(node_name="n"))
    headers = {"Retry-After": "7"}
    api.answers.append(web.json_response(status(429, "too many requests"), status=429, headers=headers))
    api.answers.append(
        web.Response(status=503, text="<html>", headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    )
    api.answers.append(web.json_response(status(599), status=599, headers={"Retry-After": "999999"}))
    found = []
    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            await nodes(client)
        found.append((caught.value.status, str(caught.value), caught.value.retry_after_s))
    assert found == [
        (429, "429 Too Many Requests: too many requests", 7.0),
        (503, "503 Service Unavailable", 0.0),
        (599, "599", 300.0),
    ]
    await client.close()


def use_command(path: Path, command: str) -> None:
    """Let a kubeconfig take its credentials from a shell command; GIVE is one that prints them."""
    version = "client.authentication.k8s.io/v1"
    given = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "first"}}
    path.with_name("given").write_text(json.dumps(given))
    words = command.replace("GIVE", f"cat {path.with_name('given')}")
    text = yaml.safe_load(path.read_text())
    text["users"][0]["user"] = {"exec": {"apiVersion": version, "command": "sh", "args": ["-c", words]}}
    path.write_text(yaml.safe_dump(text))


@pytest.mark.parametrize(
    ("command", "good"), [("sleep 1", False), ("exit 1", False), ("echo x", False), ("GIVE", True)]
)
async def test_a_command_that_gives_the_credentials(api, tmp_path, monkeypatch, command, good) -> None:
    monkeypatch.setattr(kube_client, "CREDENTIALS_S", 0.3 if "sleep" in command else 10.0)
    api.tokens = {"first"}
    settings = secure(tmp_path, api.port, tmp_path / "server.crt")
    use_command(Path(settings.kubeconfig), command)
    client = KubeClient(settings)
    if good:
        assert b"node-1" in await nodes(client)
    else:
        with pytest.raises((ServerUnreachable, ApiError)):
            await nodes(client)
    await client.close()


@pytest.mark.long
async def test_a_command_that_takes_too_long_is_killed_with_what_it_started(api, tmp_path, monkeypatch) -> None:
    """Also a command that has ended and left a process behind that could still print."""
    settings = secure(tmp_path, api.port, tmp_path / "server.crt")
    for number, words in enumerate(("sleep 600 & echo $! $$ > PIDS; wait", "sleep 600 & echo $! > PIDS")):
        pids = tmp_path / f"pids{number}"
        use_command(Path(settings.kubeconfig), words.replace("PIDS", str(pids)))
        monkeypatch.setattr(kube_client, "CREDENTIALS_S", 3.0)
        client = KubeClient(settings)
        with pytest.raises(ServerUnreachable, match="no credentials within 3 s"):
            await nodes(client)
        await client.close()
        found = [int(word) for word in pids.read_text().split()]
        assert found
        await gone(found)


async def gone(pids: list[int]) -> None:
    """Wait until the processes are gone, or wait for a parent that does not ask for them."""
    for pid in pids:
        await asyncio.to_thread(wait_for, lambda pid=pid: state_of(pid) in ("", "Z"), "the end of a process")


def state_of(pid: int) -> str:
    """Return the state letter of a process; '' when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("exit 3", "sh ended with 3"),
        ("echo some words >&2; exit 4", "sh ended with 4: some words"),
        ("echo x", "sh printed no JSON"),
        ("echo {}", "sh printed no ExecCredential with a status"),
        ("""echo '{"apiVersion": "v9", "status": {}}'""", "sh printed an ExecCredential of v9, expected v1"),
    ],
)
async def test_what_a_command_did_wrong_is_said(printed: str, said: str) -> None:
    with pytest.raises(LbError, match=f"^{re.escape(said)}$"):
        await credentials_command.run(["sh", "-c", printed], os.environ, "v1")
