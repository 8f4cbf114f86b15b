"""Announces VIPs by BGP: writes the desired routes into BIRD's configuration, keeps BIRD running, and polls the sessions.

Nothing is written before the first `set_routes`: until then a BIRD that an earlier agent left keeps its routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from lbagent.announce.bgp import session_faults
from lbagent.announce.bgp.bird_config import PeerSession, bird_config, unreachable_families
from lbagent.announce.bgp.bird_control import BirdRefused, Protocol
from lbagent.announce.bgp.bird_process import FOLDER, BirdProcess
from lbagent.announce.bgp.node_addresses import choose_router_id
from lbagent.announce.bgp.peer_sessions import PeerSessions
from lbagent.errors import ConfigError, LbError
from lbagent.model.address import format_ip
from lbagent.model.family import Family
from lbagent.net.snapshot import NodeNetwork
from lbagent.pools.announcement import BgpSettings
from lbagent.sync.backoff import delays

log = logging.getLogger(__name__)
CHECK_S = 1.0  # between two checks whether BIRD runs
CHECKS_A_LOOK = 3  # established sessions, and password files, are read once in so many checks
UNANSWERED = 3  # checks without an answer, then BIRD is killed and restarted
STEADY_S = 60.0  # a BIRD that ran for so long is restarted at once
SESSION_GRACE_S = 10.0  # a session that is down for less is not reported


class BgpPeerRow(Struct, gc=False, omit_defaults=True):
    """A router that this node has a BGP session with. Its words in lists: api/capabilities/bgp.py."""

    address: str
    asn: int
    state: (
        str  # established; idle, connect, active, opensent, openconfirm (RFC 4271 8.2.2); down: no BIRD, or no session
    )
    bfd: str  # up, down, init, admindown; off: not configured
    advertised: int  # routes that the router receives
    reason: str = ""  # why the session is not established, and what to do; left out when it is


class BgpSpeaker:
    """The BGP of this node. One task runs `run`; the other methods may be called at any time."""

    def __init__(
        self, state_dir: str, node: str, network: Callable[[], NodeNetwork], *, password_folder: str = ""
    ) -> None:
        """BIRD's folder is in `state_dir`; a relative passwordFile is below `password_folder`; `network` returns the node's."""
        self._bird = BirdProcess(os.path.join(state_dir, FOLDER))
        self._node, self._network = node, network
        self._chosen = PeerSessions(password_folder)
        self._settings: BgpSettings | None = None
        self._labels: Mapping[str, str] = {}
        self._routes: frozenset[bytes] | None = None
        self._sessions: list[PeerSession] = []
        self._in_force = self._refused = ""  # the configuration that BIRD loaded, and the one that it refused
        self._problems: tuple[str, ...] = ()
        self._down: dict[str, tuple[float, str]] = {}  # by peer: since when, and why
        self._busy = asyncio.Lock()  # held while BIRD or its configuration changes
        self._answers = True  # at the last poll
        self._pauses = delays()
        self._start_at = 0.0  # of the loop's clock: not before
        self.sessions_up: dict[str, bool] = {}  # by peer, of the last poll

    async def use_settings(self, settings: BgpSettings | None, labels: Mapping[str, str]) -> None:
        """Set the section `bgp` (None: there is none, and BIRD ends) and the labels of this node, which select its peers."""
        self._settings, self._labels = settings, dict(labels)
        if settings is None:
            async with self._busy:
                await self._end()
        else:
            await self._apply()

    async def set_routes(self, addresses: Collection[bytes]) -> None:
        """Announce exactly these addresses. Failures are in `problems`, and retried; a refused configuration changes nothing."""
        self._routes = frozenset(addresses)
        await self._apply()

    async def stop(self, *, keep: bool = True) -> None:
        """Stop; with `keep` BIRD keeps announcing its routes, for the next agent, else it closes its sessions."""
        self._settings = None
        async with self._busy:
            if not keep:
                await self._end()

    def problems(self) -> list[str]:
        """Return the present faults, one sentence each."""
        return [text for _, text in self.faults()]

    def faults(self) -> list[tuple[str, str]]:
        """Return the same with the subject of each: BIRD, or a peer."""
        now = asyncio.get_running_loop().time()
        down = {f"BGP peer {peer}": why for peer, (since, why) in self._down.items() if now - since >= SESSION_GRACE_S}
        out = [("BGP", "; ".join(self._problems))] if self._problems else []
        return [*out, *((peer, f"{peer}: {why}") for peer, why in down.items())]

    def refusal(self) -> str:
        """Return why no router gets the routes, '' when one does."""
        if any(self.sessions_up.values()):
            return ""
        down = "no BGP session is established; see `lbagent bgp peers`"
        return "; ".join(self._problems) or (down if self._sessions else "no peer of the section bgp is for this node")

    async def peers(self) -> list[BgpPeerRow]:
        """Return the sessions of this node, in the order of the file."""
        return self._rows(*await self._look())

    async def run(self) -> None:
        """Keep BIRD running and poll its sessions, until cancelled."""
        unanswered = checks = 0
        while True:
            await asyncio.sleep(CHECK_S)
            if self._settings is None or self._routes is None:
                continue
            checks += 1
            if checks % CHECKS_A_LOOK and all(self.sessions_up.values()) and self._bird.is_running():
                continue
            await self._apply()
            found, bfd = await self._look()
            rows = self._rows(found, bfd)
            self._note(rows)
            await self._try_again(found)
            silent = bool(rows) and not self._answers and self._bird.is_running()
            unanswered = unanswered + 1 if silent else 0
            if unanswered >= UNANSWERED:
                log.error("bird does not answer and is restarted")
                self._bird.kill()
                unanswered = 0

    # --- the configuration ---

    async def _apply(self) -> None:
        """Apply the settings; log a failure once."""
        async with self._busy:
            if self._settings is None or self._routes is None:
                return
            problems = []
            try:
                await self._apply_now(self._settings, self._routes)
            except LbError as error:
                problems.append(str(error))
            problems = [*self._chosen.problems, *problems, *self._left_out(self._routes)]
            for text in problems:
                if text not in self._problems:
                    log.error("bgp problem", extra={"reason": text})
            self._problems = tuple(problems)

    async def _apply_now(self, settings: BgpSettings, routes: frozenset[bytes]) -> None:
        network = self._network()
        self._sessions = self._chosen.choose(settings, self._labels, network)
        if not self._sessions:
            await self._end()
            return
        self._bird.prepare()
        towards_peers = (each.local4 for each in self._sessions)
        router_id = choose_router_id(self._bird.last_config(), network, self._node, towards_peers)
        text = bird_config(
            settings, router_id=router_id, log_file=self._bird.log, sessions=self._sessions, routes=routes
        )
        if not self._bird.is_running():
            await self._start(text, recover=settings.graceful_restart)
        elif text == self._refused:
            raise ConfigError(self._refusal)
        elif text != self._in_force:
            await self._reconfigure(text)

    async def _reconfigure(self, text: str) -> None:
        """Load a configuration into BIRD; after a refusal the old one stays in force and on disk. Raises ConfigError."""
        self._bird.write(text)
        try:
            await self._bird.control.configure(self._bird.draft)
        except BirdRefused as error:
            self._bird.drop()
            self._refused = text
            self._refusal = f"bird refuses its configuration, the previous one stays in force: {error}"
            raise ConfigError(self._refusal) from None
        self._bird.keep()
        self._in_force, self._refused = text, ""

    async def _start(self, text: str, *, recover: bool) -> None:
        """Start BIRD; after a failure only when a pause is over. `recover`: the previous BIRD left its sessions open."""
        now = asyncio.get_running_loop().time()
        if now < self._start_at:
            raise ConfigError(self._start_failure)
        if now > self._start_at + STEADY_S:
            self._pauses = delays()
        self._start_at = now + next(self._pauses)
        recover = recover and bool(self._bird.last_config())
        self._bird.write(text)
        self._bird.keep()
        try:
            await self._bird.start(recover=recover)
        except LbError as error:
            self._start_failure = str(error)
            raise
        self._in_force, self._refused = text, ""

    async def _end(self) -> None:
        await self._bird.end()
        self._bird.forget()
        self._in_force = self._refused = ""
        self._sessions, self._down, self.sessions_up = [], {}, {}

    _refusal = _start_failure = ""

    def _left_out(self, routes: Collection[bytes]) -> list[str]:
        """Return the routes that a peer does not get, one sentence each."""
        families = {Family.of(each) for each in routes}
        return [
            f"BGP peer {format_ip(session.peer.address)}: {family.name.replace('IPV', 'IPv')} VIPs are not announced to it:"
            " this node has no address of this family on the device towards it"
            for session in self._sessions
            for family in sorted(families & unreachable_families(session))
        ]

    # --- sessions ---

    async def _look(self) -> tuple[Mapping[str, Protocol], Mapping[str, str]]:
        """Return BIRD's sessions by name, and BFD's by address; none when it does not answer."""
        try:
            found = await self._bird.control.protocols()
            wants_bfd = any(session.peer.bfd for session in self._sessions)
            bfd = await self._bird.control.bfd_sessions() if wants_bfd else {}
        except LbError:
            found, bfd = {}, {}
        self._answers = bool(found)
        return found, bfd

    async def _try_again(self, found: Mapping[str, Protocol]) -> None:
        """Restart the sessions that BIRD disabled."""
        for session in self._sessions:
            if session_faults.is_given_up(found.get(session.name)):
                with contextlib.suppress(LbError):
                    await self._bird.control.enable(session.name)

    def _rows(self, found: Mapping[str, Protocol], bfd: Mapping[str, str]) -> list[BgpPeerRow]:
        lines = [] if all(each.is_up for each in found.values() if each.kind == "BGP") else self._log_lines()
        return [self._row(session, found, bfd, lines) for session in self._sessions]

    def _row(
        self, session: PeerSession, found: Mapping[str, Protocol], bfd: Mapping[str, str], lines: Sequence[str]
    ) -> BgpPeerRow:
        text, each = format_ip(session.peer.address), found.get(session.name)
        if found:
            reason = session_faults.fault(session, each, lines, datetime.now())  # noqa: DTZ005 - the log has local time
        else:
            reason = "; ".join(self._problems) or "bird does not answer"
        state = bfd.get(text, "down") if session.peer.bfd else "off"
        return BgpPeerRow(
            text, session.peer.asn, each.state if each else "down", state, each.exported if each else 0, reason
        )

    def _log_lines(self) -> list[str]:
        """Return the end of BIRD's log."""
        try:
            with open(self._bird.log, "rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - session_faults.LOG_BYTES))
                return stream.read().decode(errors="replace").splitlines()
        except OSError:
            return []

    def _note(self, rows: Sequence[BgpPeerRow]) -> None:
        """Log each session that changed, and keep the values for metrics and `problems`."""
        now = asyncio.get_running_loop().time()
        before, self.sessions_up = self.sessions_up, {row.address: row.state == "established" for row in rows}
        for row in rows:
            if not self.sessions_up[row.address] and before.get(row.address):
                log.warning("bgp session is down", extra={"peer": row.address, "reason": row.reason})
            elif self.sessions_up[row.address] and not before.get(row.address):
                log.info("bgp session is up", extra={"peer": row.address})
        self._down = {
            row.address: (self._down.get(row.address, (now, ""))[0], row.reason)
            for row in rows
            if row.state != "established"
        }
