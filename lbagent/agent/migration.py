"""An agent with --shadow that serves, because `lbagent migrate` requested it: the request lasts over restarts.

While it serves, it leaves open connections to the proxy that began them: with bpf only a SYN begins a flow, and its SNAT ports are
none that netfilter uses (docs/kubernetes.md).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from lbagent.api.migration_answers import MigrationRequest, MigrationStatus
from lbagent.config import Config
from lbagent.errors import Conflict, LbError, Refused
from lbagent.kernel.private_folder import make_private, replace_private
from lbagent.render.renderer_names import SHIPPED
from lbagent.targets.data_plane import LeftOver
from lbagent.targets.offline_planes import take_out, unavailable_reason
from lbagent.targets.renderers import chosen, kept_by_flows, left_to_proxy, require_alone

FILE = "migration.json"
NEW_FLOWS, SNAT_PORTS = "syn", "256-1023"
ANSWER_S = 0.2  # until the answer of the request is sent
MAX_BYTES = 1 << 16
log = logging.getLogger(__name__)


class _File(msgspec.Struct):
    renderers: list[str]
    is_left: bool = False  # the other proxy serves, and what these have in force keeps the flows that it has


class MigrationRecord:
    """The file in the state folder: it is there while an agent with --shadow serves, or flows of that time are left."""

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, FILE)

    def read(self) -> list[str] | None:
        """Return the words of --renderer; None: the agent only compares. A file that cannot be read counts as absent."""
        file = self._file()
        return None if file is None or file.is_left else file.renderers

    def read_left(self) -> list[str] | None:
        """Return the words of --renderer by which flows are left; None: the agent serves, or only compares."""
        file = self._file()
        return file.renderers if file is not None and file.is_left else None

    def _file(self) -> _File | None:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=_File)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.error("the migration cannot be read: the agent only compares", extra={"error": str(error)})
            return None

    def write(self, renderers: list[str], *, is_left: bool = False) -> None:
        """Have the agent serve from its next start on; `is_left`: only the flows that there are. Raises OSError."""
        make_private(os.path.dirname(self._path))
        replace_private(self._path, msgspec.json.encode(_File(renderers, is_left)))

    def remove(self) -> None:
        """Have the agent compare. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)


def migrated(config: Config) -> Config:
    """Return the configuration as it is in force: a migration turns --shadow off."""
    if not config.shadow:
        return config
    renderers = MigrationRecord(config.state_dir).read()
    return config if renderers is None else serving(config, renderers)


def serving(config: Config, renderers: list[str]) -> Config:
    """Return the configuration with which an agent with --shadow serves."""
    ports = SNAT_PORTS if config.snat_ports == Config().snat_ports else config.snat_ports
    return replace(config, shadow=False, renderer=tuple(renderers), new_flows=NEW_FLOWS, snat_ports=ports)


class Migration:
    """The requests of a running agent. `again` ends its parts and starts them with what the file has then."""

    def __init__(self, load: Callable[[], Config]) -> None:
        self._load = load  # the configuration without the file
        self._running = Config()  # the configuration of the parts that run
        self._left: list[str] | None = None  # what had flows left when the agent was requested to serve
        self.error = ""
        self.again: Callable[[], None] = lambda: None
        self.requested: MigrationRequest | None = None  # by which the parts start again; none once the agent is to end

    def load(self) -> Config:
        """Return the configuration in force. Raises ConfigError."""
        return migrated(self._load())

    def begin(self, config: Config) -> MigrationRequest | None:
        """Take note of the configuration of the parts that start now; return the request by which they do.

        Without --shadow a migration of before is forgotten. Raises ConfigError.
        """
        self._running = config
        if not self._load().shadow:
            with suppress(OSError):
                MigrationRecord(config.state_dir).remove()
        request, self.requested = self.requested, None
        return request

    @property
    def replaces_proxy(self) -> bool:
        """Whether the parts that run serve in place of another proxy."""
        return self._load().shadow and not self._running.shadow

    def status(self) -> MigrationStatus:
        """Return what the parts that run do, not what the file requests. Raises ConfigError."""
        running = self._running
        shadow = self._load().shadow
        is_left = running.shadow and MigrationRecord(running.state_dir).read_left() is not None
        return MigrationStatus(shadow, not running.shadow, list(running.renderer), self.error, is_left)

    async def request(self, wanted: MigrationRequest) -> MigrationStatus:
        """Start the parts again, as requested; return the state before.

        Raises Refused where the agent has no --shadow, or nothing else would serve the node; ConfigError, Conflict, Unsupported
        where the data planes cannot be used.
        """
        before = self.status()
        if not before.shadow:
            raise Refused("this agent was started without --shadow: it serves, and only its end changes that")
        if self.requested is not None:
            raise Conflict("another migration of this agent has just begun")
        if wanted.serves == before.serves:
            return before
        config = self._load()
        record = MigrationRecord(config.state_dir)
        try:
            if wanted.serves:
                self._left = record.read_left()
                is_left = self._left is not None  # what is in force is the agent's
                await asyncio.to_thread(_require_usable, serving(config, wanted.renderers), is_left=is_left)
                record.write(wanted.renderers)
            else:
                await asyncio.to_thread(_require_other_proxy)
        except OSError as error:
            raise LbError(f"{config.state_dir}: {error.strerror or error}; nothing was changed") from error
        self.error, self.requested = "", MigrationRequest(wanted.serves, list(before.renderers))
        asyncio.get_running_loop().call_later(ANSWER_S, self.again)
        return before

    def failed(self, error: LbError) -> None:
        """Only compare again: what was requested could not be done. Raises OSError."""
        config = self._load()
        record = MigrationRecord(config.state_dir)
        if self._left is None:
            record.remove()
        else:
            record.write(self._left, is_left=True)
        self.error = str(error)
        log.error("the agent cannot serve, and only compares again", extra={"error": self.error})

    def take_out(self, config: Config) -> None:
        """Take the data planes of the configuration that was in force out, and then the file: the other proxy serves. Blocks.

        bpf stays in force for the flows that it has, since nf_conntrack does not have them (`left_over`).
        """
        record = MigrationRecord(config.state_dir)
        kept = kept_by_flows(config)
        try:
            for line in take_out(config, but=kept):
                log.info("taken out of force", extra={"what": line})
            if kept:
                record.write(list(config.renderer), is_left=True)
            else:
                record.remove()
        except (LbError, OSError) as error:
            self.error = f"the data plane was not removed, and serves: {error}"
            log.error("the data plane was not removed", extra={"error": str(error)})

    def left_over(self) -> LeftOver | None:
        """Return the data plane that has flows left since the other proxy serves again; None: there is none. Blocks."""
        words = MigrationRecord(self._running.state_dir).read_left()
        if words is None:
            return None
        found = left_to_proxy(serving(self._running, words))
        if found is None:
            self.forget_left()
        return found

    def forget_left(self) -> None:
        """Only compare: no flow is left."""
        record = MigrationRecord(self._running.state_dir)
        if record.read_left() is not None:
            with suppress(OSError):
                record.remove()


def _require_usable(config: Config, *, is_left: bool) -> None:
    """Raise ConfigError, Conflict, Unsupported where an agent with this configuration would not start.

    `is_left`: another data plane of the agent has flows left, from which this one takes over.
    """
    names = [each.name for each in chosen(config)]
    for name in names:
        if name in SHIPPED and (reason := unavailable_reason(name)):
            raise Refused(f"--renderer {name} is not available: {reason}; nothing was changed")
    if not is_left:
        require_alone(config, names)


def _require_other_proxy() -> None:
    """Raise Conflict where kube-proxy's rules are not there or dormant. Raises OSError."""
    from lbagent.targets.kube_proxy.proxy_table import dormant_families

    found = dormant_families()
    if not found or any(found.values()):
        raise Conflict("kube-proxy's rules are not in force: nothing would serve this node; nothing was changed")
