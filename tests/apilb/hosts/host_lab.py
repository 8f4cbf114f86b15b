"""A host of the tests: a namespace with podman and, on request, sshd; HTTPS servers in it; instances for it."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lbagent.apilb.hosts import carry_out
from lbagent.apilb.instance import Instance, Secret, SshAccess
from lbagent.apilb.plan_records import Action, RecordedInstance, Step
from lbagent.errors import LbError
from tests.lab.https_server import make_certificate
from tests.lab.netns import Namespace, wait_for
from tests.lab.podman import IMAGE, Podman
from tests.lab.sshd import Sshd

POOL = "controllers"
UPDATES = 4

NUMBERS = itertools.count()  # a process may have several


class TlsServer:
    """An HTTPS server that returns its name; in the namespace of the creating thread."""

    def __init__(self, folder: Path, port: int, name: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(name)))
                self.end_headers()
                self.wfile.write(name.encode())

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

            def finish_request(self, request: Any, client_address: Any) -> None:
                with contextlib.suppress(OSError), context.wrap_socket(request, server_side=True) as wrapped:
                    super().finish_request(wrapped, client_address)

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*make_certificate(folder))
        self.server = Server(("127.0.0.1", port), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class HostLab:
    """Podman and sshd on one host; `close` removes them. Ports and names are numbered, so that tests share it."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="lbhost-"))
        self._closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.space = Namespace(f"apilb{next(NUMBERS)}")
        self._closing.callback(self.space.delete)
        self.podman = Podman(self.folder / "p", self.space)
        self._closing.callback(self.podman.close)
        self.podman.import_haproxy()
        self._number = itertools.count()
        self._sshd: Sshd | None = None

    @property
    def sshd(self) -> Sshd:
        if self._sshd is None:
            self._sshd = Sshd(self.folder / "s", self.space)
            self._closing.callback(self._sshd.stop)
        return self._sshd

    def access(self, **words: Any) -> SshAccess:
        """Return the ssh access to this host, with its password and host key."""
        usual = {
            "address": "127.0.0.1",
            "password": Secret(self.sshd.password),
            "host_key": self.sshd.host_key(),
            "connection_timeout": 20.0,
            "retry_timeout": 30.0,
            "retry_interval": 0.1,
        }
        return SshAccess(**{**usual, **words})

    def instance(self, **words: Any) -> Instance:
        """Return an instance with a unique name, port and folder."""
        number = next(self._number)
        usual = {
            "pool": POOL,
            "name": f"lb{number}",
            "image": IMAGE,
            "bind_address": f"127.0.0.1:{20000 + number}",
            "servers": ("127.0.0.1:10001",),
            "host_config_path": str(self.folder / f"host{number}" / "haproxy" / "haproxy.cfg"),
            "docker_host": self.podman.docker_host,
        }
        return Instance(**{**usual, **words})

    async def do(
        self, action: Action, instance: Instance | None, recorded: RecordedInstance | None = None, **words: Any
    ) -> Any:
        """Execute one step from this host."""
        item = instance or recorded
        assert item is not None
        step = Step(pool=item.pool, name=item.name, host=item.host, action=action, instance=instance, recorded=recorded)
        self.said: list[str] = []
        with self.space.entered():
            return await carry_out(step, self.said.append, **words)

    async def update_once_free(self, instance: Instance, recorded: RecordedInstance) -> RecordedInstance:
        """Update an instance whose bind was taken: a start that began before it was free may still end with that."""
        for _ in range(UPDATES - 1):
            with contextlib.suppress(LbError):
                return await self.do(Action.UPDATE, instance, recorded)  # type: ignore[no-any-return]
        return await self.do(Action.UPDATE, instance, recorded)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def servers(self, *ports: int) -> Iterator[None]:
        """Serve HTTPS on ports of the host; each returns its port."""
        with self.space.entered():
            running = [TlsServer(self.folder, port, str(port)) for port in ports]
        try:
            yield
        finally:
            for server in running:
                server.close()

    def ask(self, instance: Instance) -> str:
        """Return a server's answer through the instance, on a new connection."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        address, _, port = instance.bind_address.rpartition(":")
        there = (address, int(port))
        with self.space.entered(), socket.create_connection(there, 10) as plain, context.wrap_socket(plain) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: sock.recv(4096), b"")).decode().rpartition("\r\n\r\n")[2]

    def wait_answer(self, instance: Instance, wanted: str) -> None:
        wait_for(lambda: self.ask(instance) == wanted, f"{wanted} through {instance.bind_address}", 30)

    def inspect(self, name: str) -> Any:
        import json

        return json.loads(self.podman.run("inspect", name))[0]

    def names(self) -> set[str]:
        """Return the names of all containers."""
        return set(self.podman.run("ps", "--all", "--format", "{{.Names}}").split())

    def close(self) -> None:
        self._closing.close()
