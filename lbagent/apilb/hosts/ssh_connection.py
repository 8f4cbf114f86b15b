"""A host by ssh: log in within the retry window, run a command, forward its runtime's socket, open its files.

Only network failures are retried: a refused login, an untrusted host key and wrong keys fail at once. No message contains a
secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from lbagent.apilb.hosts.ssh_host_keys import host_keys_of, not_trusted
from lbagent.apilb.instance import SshAccess
from lbagent.errors import ConfigError, HostUnreachable, LbError
from lbagent.kernel.regular_file import check_regular

if TYPE_CHECKING:
    import asyncssh

ALIVE_S, ALIVE_COUNT = 10, 3  # detects a host that dies after the login
OPEN_S = 15.0  # until a channel of a connected host is open
LOGINS_AT_ONCE = 32
_LOGINS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


class SshHost:
    """An authenticated connection to a host."""

    def __init__(self, ssh: SshAccess, connection: asyncssh.SSHClientConnection) -> None:
        self.ssh, self._connection = ssh, connection

    async def run(self, argv: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """Run a command and return its exit code and output; the arguments are passed unchanged with any login shell."""
        import asyncssh

        try:
            done = await self._connection.run(
                shlex.join(argv), stderr=asyncssh.STDOUT, timeout=timeout_s, errors="replace"
            )
        except asyncssh.TimeoutError:
            raise LbError(f"{self.ssh}: {argv[0]} did not end within {timeout_s:g} s") from None
        except (asyncssh.Error, OSError) as error:
            raise HostUnreachable(f"{self.ssh}: {argv[0]}: {_reason(error)}") from None
        return (255 if done.exit_status is None else done.exit_status), str(done.stdout or "")

    @contextlib.asynccontextmanager
    async def forwarded(self, path: str) -> AsyncIterator[str]:
        """Forward the host's unix socket; yield the local path, in a private folder. Raises HostUnreachable."""
        import asyncssh

        try:
            async with asyncio.timeout(OPEN_S):
                _, writer = await self._connection.open_unix_connection(path)
                writer.close()
        except TimeoutError:
            raise HostUnreachable(f"{self.ssh}: {path} could not be opened within {OPEN_S:g} s") from None
        except (asyncssh.Error, OSError) as error:
            text = f"{self.ssh}: {path} could not be opened ({_reason(error)})"
            question = f"is Docker or podman's service running there, and may {self.ssh.user} use its socket?"
            raise HostUnreachable(f"{text}; {question}") from None
        folder = tempfile.mkdtemp(prefix="lbagent-ssh-")  # 0700
        try:
            async with await self._connection.forward_local_path(os.path.join(folder, "runtime.sock"), path):
                yield os.path.join(folder, "runtime.sock")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def sftp(self) -> AsyncIterator[asyncssh.SFTPClient]:
        """Open the host's files. Raises HostUnreachable, also if sshd has no sftp."""
        import asyncssh

        try:
            async with asyncio.timeout(OPEN_S):
                client = await self._connection.start_sftp_client()
        except (TimeoutError, asyncssh.Error, OSError) as error:
            raise HostUnreachable(f"{self.ssh}: the SSH server offers no SFTP subsystem: {_reason(error)}") from None
        async with client:
            yield client


@contextlib.asynccontextmanager
async def connected(ssh: SshAccess) -> AsyncIterator[SshHost]:
    """Log in; retry for `retry_timeout` seconds. Raises HostUnreachable, Refused (host key), ConfigError."""
    import asyncssh

    asyncssh.set_log_level(logging.WARNING)
    options, keys = _log_in_options(ssh), None if ssh.insecure_ignore_host_key else host_keys_of(ssh)
    options.update({"known_hosts": None} if keys is None else keys.options())
    shown: list[asyncssh.SSHKey] = []

    class Client(asyncssh.SSHClient):
        def validate_host_public_key(self, _host: str, _addr: str, _port: int, key: asyncssh.SSHKey) -> bool:
            shown[:] = [key]  # its key is not trusted
            return False

    begun, tries = time.monotonic(), 0
    while True:
        tries += 1
        try:
            connection = await _log_in(ssh, {**options, "client_factory": Client})
            break
        except asyncssh.HostKeyNotVerifiable:
            assert keys is not None
            raise not_trusted(ssh, keys, shown[0] if shown else None) from None
        except asyncssh.PermissionDenied:
            raise HostUnreachable(f"{ssh}: the login was refused ({_offered(ssh)}); it is not retried") from None
        except (OSError, TimeoutError, asyncssh.ConnectionLost) as error:  # failures of the network
            reason = _reason(error, ssh.connection_timeout)
        except asyncssh.Error as error:
            raise HostUnreachable(f"{ssh}: {_reason(error)}; it is not retried") from None
        spent = time.monotonic() - begun
        if spent + ssh.retry_interval >= ssh.retry_timeout:
            times = "once" if tries == 1 else f"{tries} times"
            raise HostUnreachable(f"{ssh}: {reason} (tried {times} in {spent:.0f} s)")
        await asyncio.sleep(ssh.retry_interval)
    try:
        yield SshHost(ssh, connection)
    finally:
        connection.close()
        with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(1):
                await connection.wait_closed()


async def _log_in(ssh: SshAccess, options: dict[str, Any]) -> asyncssh.SSHClientConnection:
    """Connect, and log in when a slot is free. Raises asyncssh's errors, OSError, TimeoutError."""
    import asyncssh

    async with _agent_keys(ssh) as from_agent:
        async with asyncio.timeout(ssh.connection_timeout):
            sock = await _connect(ssh)  # many hosts that do not answer may be waited for at once
        try:
            async with _logins(), asyncio.timeout(ssh.connection_timeout):
                keys_shown = {"client_keys": from_agent or options["client_keys"]}
                return await asyncssh.connect(ssh.address, sock=sock, **{**options, **keys_shown})
        except BaseException:
            sock.close()
            raise


def _logins() -> asyncio.Semaphore:
    """Return how many may log in at once: each needs CPU here, so that too many at once would time out."""
    return _LOGINS.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(LOGINS_AT_ONCE))


async def _connect(ssh: SshAccess) -> socket.socket:
    """Connect to the first of a host's addresses that answers."""
    loop = asyncio.get_running_loop()
    *others, last = await loop.getaddrinfo(ssh.address, ssh.port, type=socket.SOCK_STREAM)
    for info in others:
        with contextlib.suppress(OSError):
            return await _connect_to(info)
    return await _connect_to(last)


async def _connect_to(info: Any) -> socket.socket:
    sock = socket.socket(info[0], info[1], info[2])
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, info[4])
    except BaseException:
        sock.close()
        raise
    return sock


def _log_in_options(ssh: SshAccess) -> dict[str, Any]:
    import asyncssh

    if not (_has_own_way(ssh) or os.environ.get("SSH_AUTH_SOCK")):
        raise ConfigError(
            f"{ssh}: no way to log in: give a password, a privateKey or a privateKeyFile, or start an ssh agent"
        )
    keys: list[asyncssh.SSHKey] = []
    try:
        if ssh.private_key:
            keys.append(asyncssh.import_private_key(ssh.private_key.reveal()))
        if ssh.private_key_file:
            check_regular(path := os.path.expanduser(ssh.private_key_file))
            keys.append(asyncssh.read_private_key(path))
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, ValueError):
        which = "privateKey" if not keys and ssh.private_key else f"privateKeyFile {ssh.private_key_file}"
        raise ConfigError(f"{ssh}: {which} is not a private key in PEM without a passphrase") from None
    except OSError as error:
        raise ConfigError(f"{ssh}: privateKeyFile {ssh.private_key_file}: {error.strerror}") from None
    return {
        "port": ssh.port,
        "username": ssh.user,
        "password": ssh.password.reveal() if ssh.password else None,
        "client_keys": keys or None,
        "agent_path": None,  # see _agent_keys
        "config": None,  # only pool files decide, not ~/.ssh/config
        "connect_timeout": ssh.connection_timeout,
        "login_timeout": ssh.connection_timeout,
        "keepalive_interval": ALIVE_S,
        "keepalive_count_max": ALIVE_COUNT,
        "encryption_algs": _ciphers(),
        "x11_forwarding": False,
        "agent_forwarding": False,
    }


def _ciphers() -> list[str]:
    """Return the default ciphers, those with one call of OpenSSL per packet first: sessions of many hosts share one thread."""
    import asyncssh

    names = [name.decode() for name in asyncssh.encryption.get_default_encryption_algs()]
    return sorted(names, key=lambda name: "gcm" not in name)


def _has_own_way(ssh: SshAccess) -> bool:
    return bool(ssh.password or ssh.private_key or ssh.private_key_file)


@contextlib.asynccontextmanager
async def _agent_keys(ssh: SshAccess) -> AsyncIterator[list[asyncssh.SSHKeyPair]]:
    """Return the keys of the ssh agent if the pool file has no credentials: servers limit the number of keys tried."""
    import asyncssh

    if _has_own_way(ssh):
        yield []
        return
    try:
        agent = await asyncssh.connect_agent()
        keys = list(await agent.get_keys())
    except (OSError, ValueError, asyncssh.Error):
        raise ConfigError(
            f"{ssh}: the ssh agent of SSH_AUTH_SOCK does not answer, and there is no other way to log in"
        ) from None
    try:
        if not keys:
            raise ConfigError(f"{ssh}: the ssh agent of SSH_AUTH_SOCK has no key, and there is no other way to log in")
        yield keys
    finally:
        agent.close()


def _offered(ssh: SshAccess) -> str:
    ways = [("a password", ssh.password), ("privateKey", ssh.private_key), ("privateKeyFile", ssh.private_key_file)]
    return "offered: " + (", ".join(name for name, value in ways if value) or "keys of an ssh agent")


def _reason(error: BaseException, timeout_s: float = 0) -> str:
    """Return a sentence about an error, without an errno."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s or OPEN_S:g} s"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # asyncio's text contains details of the connection
    text = (error.strerror if isinstance(error, OSError) else getattr(error, "reason", "")) or str(error)
    return text.strip() or type(error).__name__
