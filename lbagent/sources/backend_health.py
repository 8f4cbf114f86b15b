"""Health checks of backends as a source: the backends of each Service whose check fails.

The loop gives the Services to check after each pass (`check`), and takes a FailedChecks for each one with a backend that is down.
What is down is kept in one JSON file in the state directory, so that a restarted agent gives such a backend no flow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.errors import LbError
from lbagent.kernel.private_folder import make_private, replace_private
from lbagent.kernel.regular_file import read_regular
from lbagent.model.address import L3n4Addr
from lbagent.model.message import Message
from lbagent.objects.records import FailedChecks, ObjectChange, ObjectSnapshot, Origin
from lbagent.objects.source import OnChange, initial_changes
from lbagent.probes.backend_check import CheckedService
from lbagent.probes.checker import Health
from lbagent.probes.destination import MarkOf, unmarked
from lbagent.probes.health_checks import HealthChecks, Key
from lbagent.probes.kept_health import KeptHealth
from lbagent.probes.passive_checks import LOOK_INTERVAL_S, ObservedFlows, PassiveChecks

log = logging.getLogger(__name__)
SOURCE = "health"
FILE = "backend-health.json"
VERSION = 1
MAX_BYTES = 64 << 20
PAUSE_S = 0.05  # between two reports: many backends of a node go down together
_ORIGIN = Origin(source=SOURCE)


class BackendHealth(Struct, frozen=True, gc=False):
    """The result of one backend's check for one Service."""

    service: str
    backend: L3n4Addr
    type: str
    health: Health

    @property
    def is_known(self) -> bool:
        """Whether it was checked."""
        return bool(self.health.since)


class _KeptBackend(Struct, frozen=True):
    """A backend that is down."""

    service: str
    backend: str
    server: KeptHealth


class _Kept(Struct, frozen=True):
    """The contents of the file."""

    version: int = VERSION
    down: tuple[_KeptBackend, ...] = ()


class BackendHealthSource:
    """Implements objects.source.Source."""

    name = SOURCE
    trusted = listed = True
    remembered = False
    remedy, held, distrust = "", 0, None

    def __init__(self, state_dir: str, mark_of: MarkOf = unmarked, flows: ObservedFlows | None = None) -> None:
        """Read what was down when an earlier agent ended.

        `mark_of` returns the mark of sockets by which the data plane sends their flows to a backend; 0: it cannot. `flows`: what
        passive checks read; None: no data plane has it.
        """
        self.passive = PassiveChecks()
        self._flows = flows
        self.synced = asyncio.Event()
        self._path = os.path.join(state_dir, FILE)
        self._changed = asyncio.Event()
        self._services: Mapping[str, CheckedService] = {}
        self._failed: dict[str, FailedChecks] = {}
        self._written = _Kept()
        known = self._read()
        self._checks = HealthChecks(
            self._changed.set, known, counts_results=False, mark_of=mark_of, keeps_connections=False
        )
        self._had_passive = False
        self._is_checking = False  # before, the kept results hold

    def snapshot(self) -> ObjectSnapshot:
        """Return the Services of which a check fails."""
        return ObjectSnapshot(failed_checks=dict(self._failed))

    def failed(self) -> Collection[FailedChecks]:
        """Return the backends whose check fails, by Service."""
        return self._failed.values()

    def problems(self) -> Sequence[Message]:
        """Return nothing: faults of annotations are those of their objects."""
        return ()

    def resume(self) -> None:
        """Do nothing: the file has been read."""

    async def run(self, on_change: OnChange) -> None:
        """Report what was down, then each change, until cancelled."""
        on_change(initial_changes(self.snapshot()))
        self.synced.set()
        watching = asyncio.create_task(self._watch_flows(self._flows)) if self._flows else None
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._is_checking and (changes := self._update()):
                    on_change(changes)
                    await self._write()
                await asyncio.sleep(PAUSE_S)
        finally:
            self._checks.close()
            if watching is not None:
                watching.cancel()

    async def _watch_flows(self, flows: ObservedFlows) -> None:
        """Look at the flows of Services with a passive check, without end."""
        failure = ""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            services = {key: each for key, each in self._services.items() if each.check.passive}
            if not (services or self._had_passive):
                continue
            self._had_passive = bool(services)
            try:
                if self.passive.look(services, flows, time.monotonic()):
                    self._changed.set()
                failure = ""
            except LbError as error:
                if str(error) != failure:
                    log.error("flows could not be read for passive checks", extra={"error": str(error)})
                failure = str(error)

    def check(self, services: Mapping[str, CheckedService]) -> None:
        """Check the backends of these Services from now on. An object that is the same as before stands for the same thing."""
        if services is self._services and self._is_checking:
            return
        old, self._services, self._is_checking = self._services, services, True
        changed = [key for key in {**old, **services} if old.get(key) is not services.get(key)]
        added = [check for key in changed if (each := services.get(key)) for check in _checks_of(each)]
        removed = [check for key in changed if (each := old.get(key)) for check in _checks_of(each)]
        self._checks.change([key for _, key in added], [key for _, key in removed])
        self._changed.set()

    def results(self) -> Iterator[BackendHealth]:
        """Yield the result of each backend of each Service."""
        for service, checked in self._services.items():
            for backend, _ in checked.backends if checked.check.passive and self._flows else ():
                yield BackendHealth(service, backend, "passive", self.passive.health(service, backend))
        for service, backend, key in self._each():
            checker = self._checks.checker(*key)
            if checker is not None:
                yield BackendHealth(service, backend, key[1].kind.value, checker.health)

    def _each(self) -> Iterator[tuple[str, L3n4Addr, Key]]:
        for service, checked in self._services.items():
            for backend, key in _checks_of(checked):
                yield service, backend, key

    def _update(self) -> list[ObjectChange]:
        """Return the changes since the last report."""
        old, new = self._failed, {}
        for service, checked in self._services.items():
            if checked.check.passive:
                if out := dict(self.passive.down(service)):
                    why = "; ".join(f"{backend.with_protocol()}: {text}" for backend, text in sorted(out.items()))
                    new[service] = FailedChecks(service, frozenset(out), _ORIGIN, why)
                continue
            if not self._checks.down:
                continue
            backends = frozenset(backend for backend, key in _checks_of(checked) if self._checks.is_down(*key))
            if backends:
                new[service] = FailedChecks(service, backends, _ORIGIN)
        self._failed = new
        return [
            ObjectChange("FailedChecks", key, old.get(key), new.get(key))
            for key in dict.fromkeys((*old, *new))
            if old.get(key) != new.get(key)
        ]

    # --- the file for the next agent ---

    def _read(self) -> dict[Key, Health]:
        """Read the file; return the health of what was down. A missing or invalid file counts as empty."""
        try:
            kept = msgspec.json.decode(read_regular(self._path, MAX_BYTES), type=_Kept)
            if kept.version != VERSION:
                raise ValueError(f"version {kept.version}")
            down: dict[str, set[L3n4Addr]] = {}
            for each in kept.down:
                down.setdefault(each.service, set()).add(L3n4Addr.parse(each.backend))
            known = {each.server.key: each.server.health for each in kept.down}
        except FileNotFoundError:
            return {}
        except (OSError, *DECODING_ERRORS, ValueError) as error:
            log.warning("the health of backends cannot be read", extra={"file": self._path, "error": str(error)})
            return {}
        self._written = kept
        self._failed = {key: FailedChecks(key, frozenset(backends), _ORIGIN) for key, backends in down.items()}
        return known

    async def _write(self) -> None:
        down = [
            _KeptBackend(service, backend.with_protocol(), KeptHealth.of(key, checker.health))
            for service, failed in self._failed.items()
            for backend, key in _checks_of(self._services[service])
            if backend in failed.backends and (checker := self._checks.checker(*key)) is not None
        ]
        kept = _Kept(down=tuple(down))
        if kept == self._written:
            return
        try:
            await asyncio.to_thread(self._replace_file, msgspec.json.encode(kept))
            self._written = kept
        except OSError as error:
            log.warning("the health of backends cannot be stored for a restart", extra={"error": str(error)})

    def _replace_file(self, data: bytes) -> None:
        make_private(os.path.dirname(self._path))
        replace_private(self._path, data)


def _checks_of(checked: CheckedService) -> Iterator[tuple[L3n4Addr, Key]]:
    """Yield each backend of a Service with the key of its check."""
    check = checked.check
    if check.passive:
        return
    if check.via_vip:
        probes = {frontend: check.probe_of(frontend) for _, frontend in checked.backends}
        for backend, frontend in checked.backends:
            yield backend, (backend, probes[frontend])
        return
    probe = check.probe
    for backend, _ in checked.backends:
        yield backend, (check.server_of(backend), probe)
