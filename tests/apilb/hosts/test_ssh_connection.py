"""Hosts by ssh: each kind of login, host keys, the retry window, a hanging server; with Debian's sshd."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from lbagent.apilb.hosts import ssh_connection
from lbagent.apilb.hosts.ssh_connection import SshHost, connected
from lbagent.apilb.instance import Secret, SshAccess
from lbagent.errors import ConfigError, HostUnreachable, LbError, Refused
from tests.apilb.hosts.host_lab import HostLab
from tests.lab.https_server import full_listener
from tests.lab.netns import run, wait_for
from tests.lab.sshd import Sshd

pytestmark = pytest.mark.root
KEY_ALONE = {"password": None}


async def who(lab: HostLab, ssh: SshAccess) -> str:
    """Log in and return the user name on the host."""
    with lab.space.entered():
        async with connected(ssh) as host:
            code, said = await host.run(["sh", "-c", 'echo "$0 $1"', "a b", "$HOME"], 10)
    assert code == 0
    return said.strip()


async def test_a_password_and_keys_log_in(lab: HostLab, tmp_path: Path) -> None:
    assert await who(lab, lab.access()) == "a b $HOME"
    key = lab.sshd.client_key
    await who(lab, lab.access(password=None, private_key=Secret(key.read_text())))
    await who(lab, lab.access(password=None, private_key_file=str(key)))


async def test_an_agent_logs_in(lab: HostLab, monkeypatch: pytest.MonkeyPatch) -> None:
    with ssh_agent(lab) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        await who(lab, lab.access(password=None))
        subprocess.run(["ssh-add", "-q", "-D"], env={**os.environ, "SSH_AUTH_SOCK": path}, check=True)  # noqa: ASYNC221
        with pytest.raises(ConfigError, match="ssh agent of SSH_AUTH_SOCK has no key"):
            await who(lab, lab.access(password=None))
    with pytest.raises(ConfigError, match="ssh agent of SSH_AUTH_SOCK does not answer"):
        await who(lab, lab.access(password=None))


@contextlib.contextmanager
def ssh_agent(lab: HostLab) -> Iterator[str]:
    path = str(lab.folder / "agent.sock")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: os.path.exists(path), "the agent")
        environment = {**os.environ, "SSH_AUTH_SOCK": path}
        subprocess.run(["ssh-add", "-q", str(lab.sshd.client_key)], env=environment, check=True)
        yield path
    finally:
        agent.kill()
        agent.wait()


async def test_without_a_way_to_log_in_nothing_is_tried(lab: HostLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(ConfigError, match="no way to log in"):
        await who(lab, lab.access(password=None))


async def test_keys_that_are_none(lab: HostLab, tmp_path: Path) -> None:
    for words, text in (
        ({"private_key": Secret("s3cret rubbish")}, "privateKey is not a private key"),
        ({"private_key_file": str(tmp_path)}, "privateKeyFile .*Is a directory"),
        ({"private_key_file": str(tmp_path / "none")}, "privateKeyFile .*No such file"),
        ({"host_key": "ssh-ed25519 rubbish"}, "hostKey: .*ssh-ed25519 AAAA"),
        ({"host_key": "", "known_hosts_file": str(tmp_path / "none")}, "knownHostsFile .*No such file"),
    ):
        with pytest.raises(ConfigError, match=text) as caught:
            await who(lab, lab.access(**words))
        assert "s3cret" not in str(caught.value)
    locked = tmp_path / "locked"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "pass phrase", "-f", str(locked))
    with pytest.raises(ConfigError, match="not a private key in PEM without a passphrase"):
        await who(lab, lab.access(private_key_file=str(locked)))


async def test_a_refused_login_fails_at_once(lab: HostLab) -> None:
    asked = lab.sshd.log().count("Connection from")
    with pytest.raises(
        HostUnreachable, match=r"ssh://root@127.0.0.1:22: the login was refused \(offered: a password\)"
    ) as caught:
        await who(lab, lab.access(password=Secret("wrong s3cret"), retry_timeout=60.0))
    assert lab.sshd.log().count("Connection from") == asked + 1
    assert "s3cret" not in str(caught.value)
    other = lab.folder / "other-key"
    if not other.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other))
    with pytest.raises(HostUnreachable, match="offered: privateKeyFile"):
        await who(lab, lab.access(password=None, private_key_file=str(other)))


async def test_an_unknown_host_key_is_refused_with_the_line_to_add(
    lab: HostLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    unknown = lab.access(host_key="")
    asked = lab.sshd.log().count("Accepted")
    with pytest.raises(Refused) as caught:
        await who(lab, unknown)
    assert lab.sshd.log().count("Accepted") == asked
    text = str(caught.value)
    assert f"host key {lab.sshd.fingerprint()} is unknown" in text
    (tmp_path / ".ssh").mkdir()
    line = text.partition("known_hosts: ")[2]
    (tmp_path / ".ssh" / "known_hosts").write_text(line + "\n")
    await who(lab, unknown)


async def test_a_changed_host_key_is_refused(lab: HostLab, tmp_path: Path) -> None:
    file = tmp_path / "known"
    other = (
        run("ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(tmp_path / "old"))
        or (tmp_path / "old.pub").read_text()
    )
    for words in ({"host_key": other}, {"host_key": "", "known_hosts_file": str(file)}):
        file.write_text(f"127.0.0.1 {other}")
        with pytest.raises(Refused, match="not the known one .SHA256.*another machine may be answering") as caught:
            await who(lab, lab.access(**words))
        shown = lab.sshd.fingerprint("rsa"), lab.sshd.fingerprint("ed25519")
        assert any(each in str(caught.value) for each in shown)


async def test_known_hosts_is_read_as_ssh_reads_it(lab: HostLab, tmp_path: Path) -> None:
    file = tmp_path / "known"
    ssh = lab.access(host_key="", known_hosts_file=str(file))
    file.write_text(f"127.0.0.1 {lab.sshd.host_key('rsa')}\n")  # only the other key is trusted
    await who(lab, ssh)
    file.write_text(f"127.0.0.1 {lab.sshd.host_key()}\n")
    run("ssh-keygen", "-q", "-H", "-f", str(file))
    assert "127.0.0.1" not in file.read_text()
    await who(lab, ssh)
    file.write_text(f"@revoked * {lab.sshd.host_key()}\n@revoked * {lab.sshd.host_key('rsa')}\n")
    with pytest.raises(Refused, match="revoked"):
        await who(lab, ssh)
    file.write_text(f"[127.0.0.1]:2222 {lab.sshd.host_key()}\n")  # another port's
    with pytest.raises(Refused, match="unknown"):
        await who(lab, ssh)
    await who(lab, lab.access(host_key="", known_hosts_file=str(file), insecure_ignore_host_key=True))


async def test_a_server_that_comes_later_is_reached(lab: HostLab) -> None:
    late = Sshd(lab.folder / "late", lab.space, port=2201)
    late.stop()
    ssh = lab.access(port=2201, host_key=late.host_key(), password=Secret(late.password))
    arriving = asyncio.create_task(who(lab, ssh))
    try:
        await asyncio.sleep(1)
        assert not arriving.done()
        late.start()
        assert await arriving == "a b $HOME"
    finally:
        late.stop()


async def test_the_retry_window_ends(lab: HostLab) -> None:
    began = time.monotonic()
    with pytest.raises(
        HostUnreachable, match=r"ssh://root@127.0.0.1:2202: Connection refused .tried \d+ times in \d s"
    ) as caught:
        await who(lab, lab.access(port=2202, retry_timeout=1.0))
    assert caught.value.exit_code == 5
    assert time.monotonic() - began > 0.7
    with pytest.raises(HostUnreachable, match="tried once"):
        await who(lab, lab.access(port=2202, retry_timeout=0.0))


@pytest.mark.parametrize("banner", [b"", b"SSH-2.0-Hanging\r\n"], ids=["silent", "after the banner"])
async def test_a_server_that_hangs_is_given_up(lab: HostLab, banner: bytes) -> None:
    with lab.space.entered():
        listener = socket.create_server(("127.0.0.1", 2203))
    held = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.sendall(banner)
            held.append(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        with pytest.raises(HostUnreachable, match=r"no answer within 0.5 s \(tried \d"):
            async with asyncio.timeout(30):
                await who(lab, lab.access(port=2203, connection_timeout=0.5, retry_timeout=1.5))
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in held:
            each.close()
    assert len(held) >= 2


async def test_what_is_no_ssh_server_is_said(lab: HostLab) -> None:
    with lab.servers(10011), pytest.raises(HostUnreachable, match="ssh://root@127.0.0.1:10011: "):
        await who(lab, lab.access(port=10011, connection_timeout=2.0, retry_timeout=0.5))


async def test_the_forwarded_socket_is_ours_alone_and_goes(lab: HostLab) -> None:
    with lab.space.entered():
        async with connected(lab.access()) as host:
            async with host.forwarded(str(lab.podman.socket)) as path:
                assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(b"GET /_ping HTTP/1.0\r\n\r\n")
                assert b"200 OK" in await asyncio.wait_for(reader.read(), 10)
                writer.close()
            assert not Path(path).parent.exists()


async def test_a_socket_that_is_not_there_is_said(lab: HostLab) -> None:
    async def forward(host: SshHost, path: str) -> None:
        async with host.forwarded(path):
            pass

    with lab.space.entered():
        async with connected(lab.access()) as host:
            with pytest.raises(
                HostUnreachable, match=r"ssh://root@127.0.0.1:22: /nothing.sock could not be opened .*podman"
            ):
                await forward(host, "/nothing.sock")


async def test_a_command_that_does_not_end_is_given_up(lab: HostLab) -> None:
    with lab.space.entered():
        async with connected(lab.access()) as host:
            with pytest.raises(LbError, match="sleep did not end within 0.5 s"):
                await host.run(["sleep", "100"], 0.5)


async def test_secrets_are_in_no_log(lab: HostLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = lab.sshd.client_key.read_text()
    ssh = lab.access(private_key=Secret(key))
    await who(lab, ssh)
    assert lab.sshd.password not in caplog.text
    assert key.splitlines()[1] not in caplog.text
    assert lab.sshd.password not in repr(ssh) + str(ssh)


async def test_so_many_log_in_at_once_and_no_more(lab: HostLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_connection, "LOGINS_AT_ONCE", 4)
    ready, running, most = asyncio.Event(), 0, 0

    class Connection:
        def close(self) -> None:
            pass

        async def wait_closed(self) -> None:
            pass

    async def connect(*_: object, **words: object) -> Connection:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            ready.set()
        await ready.wait()  # four are there together
        await asyncio.sleep(0.01)
        running -= 1
        words["sock"].close()  # type: ignore[attr-defined]
        return Connection()

    monkeypatch.setattr(asyncssh, "connect", connect)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        access = lab.access(port=listener.getsockname()[1])
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(opened_and_closed(access))
    assert most == 4


async def opened_and_closed(access: SshAccess) -> None:
    async with connected(access):
        pass


async def test_a_host_that_does_not_answer_keeps_none_from_logging_in(
    lab: HostLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_connection, "LOGINS_AT_ONCE", 1)
    with lab.space.entered():
        hole = full_listener("127.0.0.1", 0)
        silent = lab.access(port=hole[0].getsockname()[1], connection_timeout=300.0)
        waiting = asyncio.create_task(opened_and_closed(silent))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(120):
            await opened_and_closed(lab.access())
    assert not waiting.done()
    waiting.cancel()
    for each in hole:
        each.close()
