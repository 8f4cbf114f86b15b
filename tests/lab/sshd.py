"""Debian's sshd without installing it: in a network namespace, with its own keys, password and configuration.

It runs in a mount namespace with its own /run and /etc/shadow. Root logs in, with the password and the keys given here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.lab.debian_packages import SSHD, unpacked
from tests.lab.netns import LabError, Namespace, run, wait_for
from tests.lab.topology import end

CONFIG = """
Port {port}
ListenAddress {address}
HostKey {folder}/host_ed25519
HostKey {folder}/host_rsa
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
PermitRootLogin yes
PasswordAuthentication yes
StrictModes no
MaxStartups 500
LogLevel VERBOSE
Subsystem sftp internal-sftp
{further}
"""
ENTER = """
mount --make-rprivate /
mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd
mount --bind {folder}/shadow /etc/shadow
mount --bind {folder}/passwd /etc/passwd
exec "$@"
"""  # the sockets and namespaces of the machine's own /run are not needed here


class Sshd:
    """One sshd; `password` is root's, and the private key of `client_key` logs in."""

    password = "correct horse battery"

    def __init__(
        self, folder: Path, space: Namespace, *, address: str = "0.0.0.0", port: int = 22, further: str = ""
    ) -> None:
        """Start it in a namespace, with its files in a new folder; `further` are lines of sshd_config."""
        self.folder, self.space, self.port, self._address = folder, space, port, address
        self._packages = unpacked("sshd", SSHD)
        folder.mkdir(parents=True)
        self.client_key = folder / "client"
        for name, kind in (("host_ed25519", "ed25519"), ("host_rsa", "rsa"), ("client", "ed25519")):
            run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "lab", "-f", str(folder / name))
        (folder / "authorized_keys").write_text((folder / "client.pub").read_text())
        secret = run("openssl", "passwd", "-6", "-stdin", text=self.password + "\n").strip()
        lines = Path("/etc/shadow").read_text().splitlines()
        rest = [line for line in lines if not line.startswith("root:")]
        (folder / "shadow").write_text("\n".join([f"root:{secret}:19000:0:99999:7:::", *rest]) + "\n")
        (folder / "shadow").chmod(0o600)
        users = Path("/etc/passwd").read_text()
        (folder / "passwd").write_text(
            users + ("" if "\nsshd:" in users else "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
        )
        self.config = folder / "sshd_config"
        self.config.write_text(CONFIG.format(folder=folder, port=port, address=address, further=further))
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Start it; returns when it listens."""
        program = str(self._packages.program("sshd"))
        argv = [
            "unshare",
            "-m",
            "sh",
            "-ec",
            ENTER.format(folder=self.folder),
            "sh",
            program,
            "-D",
            "-e",
            "-f",
            str(self.config),
        ]
        with (self.folder / "sshd.log").open("a") as log:
            environment = self._packages.environment()
            self.process = self.space.popen(argv, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(self._listens, "sshd's port", 20)

    def _listens(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise LabError(f"sshd ended: {self.log()}")
        host = "127.0.0.1" if self._address in ("0.0.0.0", "::") else self._address
        with contextlib.suppress(OSError), self.space.entered(), socket.create_connection((host, self.port), 1):
            return True
        return False

    def host_key(self, kind: str = "ed25519") -> str:
        """Return the public host key in the form of known_hosts, without the host."""
        return " ".join((self.folder / f"host_{kind}.pub").read_text().split()[:2])

    def fingerprint(self, kind: str = "ed25519") -> str:
        """Return the host key's fingerprint in ssh-keygen's form: SHA256:..."""
        return run("ssh-keygen", "-l", "-f", str(self.folder / f"host_{kind}.pub")).split()[1]

    def log(self) -> str:
        """Return its output."""
        return (self.folder / "sshd.log").read_text()

    def freeze(self) -> None:
        """Stop it (SIGSTOP): the kernel still accepts connections."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def stop(self) -> None:
        """End it; its sessions continue."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            end(self.process)
            self.process = None
