"""What native mode keeps over restarts of the agent: the last valid pools, the addresses of names, which servers are up.

One JSON file in the state directory, replaced atomically. Instances are stored as they are served, without the access to a host, so
that it has no secrets of pool files. An unreadable file counts as missing.
"""

from __future__ import annotations

import logging
import os

import msgspec
from msgspec import Struct

from lbagent.apilb.instance import Mode, OnMarkedDown
from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.kernel.private_folder import make_private, replace_private
from lbagent.kernel.regular_file import read_regular
from lbagent.probes.kept_health import KeptHealth
from lbagent.probes.probe_spec import ProbeSpec

log = logging.getLogger(__name__)
FILE = "apilb.json"
VERSION = 1
MAX_BYTES = 16 << 20


class KeptInstance(Struct, frozen=True, kw_only=True):
    """An instance of native mode: the fields that this host needs to serve it."""

    pool: str
    name: str
    bind_address: str
    servers: tuple[str, ...]
    health_check: ProbeSpec | None = None
    on_marked_down: OnMarkedDown = OnMarkedDown.RESET
    mode: Mode = Mode.NATIVE


class Kept(Struct, frozen=True):
    """The stored state. Pools are by the path of their file, addresses (texts) by the name of the host."""

    version: int = VERSION
    pools: dict[str, tuple[KeptInstance, ...]] = {}
    addresses: dict[str, tuple[str, ...]] = {}
    health: tuple[KeptHealth, ...] = ()


class KeptFile:
    """The file. `problem` is the reason why it cannot be written."""

    def __init__(self, state_dir: str) -> None:
        self.path = os.path.join(state_dir, FILE)
        self.problem = ""

    def read(self) -> Kept:
        """Return the stored state; an empty one if the file is missing, invalid, or of another version."""
        try:
            kept = msgspec.json.decode(read_regular(self.path, MAX_BYTES), type=Kept)
        except FileNotFoundError:
            return Kept()
        except (OSError, *DECODING_ERRORS) as error:
            log.warning(
                "the stored state of native pools cannot be read", extra={"file": self.path, "error": str(error)}
            )
            return Kept()
        if kept.version != VERSION:
            log.warning("the stored state of native pools has another version", extra={"file": self.path})
            return Kept()
        return kept

    def write(self, kept: Kept) -> None:
        """Replace the file; called in a thread. A failure is logged once, and is in `problem`."""
        try:
            make_private(os.path.dirname(self.path))
            replace_private(self.path, msgspec.json.encode(kept))
        except OSError as error:
            if not self.problem:
                log.warning("the state of native pools cannot be stored for a restart", extra={"error": str(error)})
            self.problem = f"{self.path} cannot be written: {error.strerror}"
        else:
            self.problem = ""
