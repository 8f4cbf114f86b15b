"""BIRD's process: the agent starts it detached, finds it again after a restart, and ends it.

It outlives the agent: a peer with BFD drops the routes of a BIRD that ends, also with graceful restart. It belongs to the
agent with its state directory: only root may enter the folder (0700), and the kernel reports which process listens on the
socket in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import stat
import subprocess

from lbagent.announce.bgp.bird_control import BirdControl, BirdHangs, BirdRefused, BirdUnreachable
from lbagent.errors import ConfigError, LbError
from lbagent.kernel.private_folder import make_private

log = logging.getLogger(__name__)
FOLDER = "bird"  # below the agent's state directory
PROGRAM, PACKAGE = "bird", "bird2"
FURTHER_FOLDERS = "/usr/sbin:/usr/local/sbin"  # folders that a unit's PATH may lack
MAX_SOCKET_BYTES = 107  # unix(7)
START_S = 10.0  # until a new process answers
END_S = 5.0  # until a BIRD that does not end is killed
STEP_S = 0.05
SAID_BYTES = 2000


class NoBird(LbError):
    """BIRD is not installed, or does not start; the text has the remedy."""


class BirdProcess:
    """The BIRD of one state directory. Raises ConfigError for an OSError of the folder."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.config, self.draft, self.socket, self.log, self._said = (
            os.path.join(self.folder, name)
            for name in ("bird.conf", "bird.conf.new", "bird.ctl", "bird.log", "start.log")
        )
        self.control = BirdControl(self.socket)
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = 0  # of the process that listened at the last check

    def prepare(self) -> None:
        """Create the folder; reject one that other users may write to. Raises ConfigError."""
        if len(os.fsencode(self.socket)) > MAX_SOCKET_BYTES:
            raise ConfigError(f"{self.socket}: longer than a socket's path may be ({MAX_SOCKET_BYTES} bytes)")
        try:
            make_private(self.folder)
            found = os.lstat(self.folder)
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}; BGP needs this folder") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ConfigError(f"{self.folder}: it is not a folder that only root may enter (mode 0700); BGP needs one")

    def write(self, text: str) -> None:
        """Write a configuration beside the one in force, readable by root only: it contains passwords. Raises ConfigError."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.draft)
            with open(os.open(self.draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(text.encode(errors="surrogateescape"))
        except OSError as error:
            raise ConfigError(f"{self.draft}: {error.strerror}") from None

    def keep(self) -> None:
        """Make the written configuration the one of the next start. Raises ConfigError."""
        try:
            os.replace(self.draft, self.config)
        except OSError as error:
            raise ConfigError(f"{self.config}: {error.strerror}") from None

    def drop(self) -> None:
        """Remove a configuration that BIRD refused."""
        with contextlib.suppress(OSError):
            os.unlink(self.draft)

    def forget(self) -> None:
        """Remove the configuration: the next start begins without a recovery."""
        with contextlib.suppress(OSError):
            os.unlink(self.config)

    def last_config(self) -> str:
        """Return the text that was last in force, '' when there is none."""
        try:
            with open(self.config, "rb") as stream:
                return stream.read().decode(errors="surrogateescape")
        except OSError:
            return ""

    def is_running(self) -> bool:
        """Return whether a process listens on the socket, also one that does not answer or is in another pid namespace."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        try:
            self._pid = self.control.listener_pid()
        except BirdHangs:
            return True
        except BirdUnreachable:
            return False
        return True

    async def start(self, *, recover: bool) -> None:
        """Start BIRD with the stored configuration; return when it answers. Raises NoBird, ConfigError.

        With `recover` its peers keep their routes to this node until it has announced them again (RFC 4724).
        """
        self._child = self._popen(find_program(), recover=recover)
        await self._answers(self._child)
        log.info("bird started", extra={"pid": self._child.pid})

    def _popen(self, program: str, *, recover: bool) -> subprocess.Popen[bytes]:
        argv = [program, "-f", "-c", self.config, "-s", self.socket, *(["-R"] if recover else [])]
        try:
            with open(os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as said:
                return subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=self.folder, start_new_session=True
                )
        except OSError as error:
            raise NoBird(f"{program} cannot be started: {error.strerror}; VIPs are not announced by BGP") from None

    async def _answers(self, child: subprocess.Popen[bytes]) -> None:
        """Wait until a started process answers. Raises NoBird."""
        deadline = asyncio.get_running_loop().time() + START_S
        while True:
            with contextlib.suppress(BirdUnreachable, BirdRefused):
                await self.control.ask("show status")
                return
            if child.poll() is not None:
                raise NoBird(f"bird ended at its start: {self._last_words() or 'without an error message'}")
            if asyncio.get_running_loop().time() > deadline:
                raise NoBird(f"bird does not answer at {self.socket}")
            await asyncio.sleep(STEP_S)

    def _last_words(self) -> str:
        try:
            with open(self._said, "rb") as stream:
                return " ".join(stream.read(SAID_BYTES).decode(errors="replace").split())
        except OSError:
            return ""

    async def end(self) -> bool:
        """End the BIRD of this folder, if there is one; return whether there was one. Its peers withdraw its routes at once."""
        if not self.is_running():
            return False
        with contextlib.suppress(BirdUnreachable, BirdRefused):
            await self.control.shut_down()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended(), END_S)
        if self.is_running():
            self.kill()
        log.info("bird ended", extra={"pid": self._pid})
        return True

    async def _ended(self) -> None:
        while self.is_running():  # noqa: ASYNC110 - what says it is another process
            await asyncio.sleep(STEP_S)

    def kill(self) -> None:
        """End a BIRD that does not answer."""
        kill(self._pid)


def find_program() -> str:
    """Return the path of bird. Raises NoBird, which names the package."""
    found = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=FURTHER_FOLDERS)
    if not found:
        raise NoBird(
            f"{PROGRAM} is not installed, so VIPs are not announced by BGP; install Debian's package {PACKAGE}"
            f" (apt-get install {PACKAGE}) and keep its own service stopped"
        )
    return found


def kill(pid: int) -> None:
    """Kill a process if it still is a BIRD: its pid may belong to another process now."""
    if pid <= 0:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")).split(" ")[0] == PROGRAM:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(descriptor)
