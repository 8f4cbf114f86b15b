"""The text of bird.conf: routes of announced addresses, one BGP session per peer. Pure.

BIRD 2 exports exactly these routes and imports nothing: there is no `protocol kernel`, so nothing on the node changes.
A value from a file or an API is written as a number, as an address, or between quotation marks; any other value is
rejected. BIRD has no escape inside a string.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from lbagent.errors import ConfigError
from lbagent.model.address import format_ip
from lbagent.model.family import Family
from lbagent.pools.announcement import BgpPeer, BgpSettings

MAX_PASSWORD_BYTES = 80  # TCP_MD5SIG_MAXKEYLEN, tcp(7)
LOG_BYTES = 1 << 20  # a larger log is renamed; two files are kept
# Seconds. With BIRD's defaults (5, 120, 60 to 300, 300) a session that failed twice stays down for minutes.
TIMES = "connect delay time 1; connect retry time 2; error wait time 1, 2; error forget time 5;"
RECOVERY_S = 5  # time that a restarted BIRD waits for its peers before it announces (RFC 4724)


class PeerSession(Struct, frozen=True):
    """A session with a peer: its password, and this node's addresses on the device towards it (empty where it has none)."""

    peer: BgpPeer
    local4: bytes = b""
    local6: bytes = b""
    password: str = ""

    @property
    def name(self) -> str:
        """BIRD's name of the session: derived from the peer's address alone, so that a reload keeps the session."""
        return f"peer_{self.peer.address.hex()}"

    @property
    def local(self) -> bytes:
        """The node's address of the peer's family."""
        return self.local4 if len(self.peer.address) == 4 else self.local6


def bird_config(
    settings: BgpSettings,
    *,
    router_id: bytes,
    log_file: str,
    sessions: Iterable[PeerSession],
    routes: Collection[bytes],
) -> str:
    """Return bird.conf. Raises ConfigError for a password or a path that BIRD's language cannot express."""
    sessions = list(sessions)
    logs = " ".join((quoted(log_file, "the log file"), str(LOG_BYTES), quoted(f"{log_file}.1", "the log file")))
    lines = [
        f"router id {_ip(router_id, Family.IPV4)};",
        f"log {logs} {{ info, remote, warning, error, auth, fatal, bug, trace }};",
        "timeformat log iso long ms;",
        "timeformat protocol iso long ms;",
        f"graceful restart wait {RECOVERY_S};",
        "protocol device { }",  # BGP and BFD get the node's devices and addresses from it
    ]
    for family in Family:
        addresses = sorted(each for each in routes if Family.of(each) is family)
        lines.append(f"protocol static {_table(family)} {{ {_channel(family)};")
        lines += [f"  route {_ip(each, family)}/{family.address_bytes * 8} blackhole;" for each in addresses]
        lines.append("}")
    lines += _filter(settings)
    if any(_has_bfd(session) for session in sessions):
        lines.append("protocol bfd bfd_sessions { }")
    for session in sessions:
        lines += _session(settings, session)
    return "\n".join(lines) + "\n"


def quoted(text: str, what: str) -> str:
    """Return a string of BIRD's language. Raises ConfigError for a quotation mark or a control character."""
    if '"' in text or any(ord(each) < 0x20 or ord(each) == 0x7F for each in text):
        raise ConfigError(f"{what} has a quotation mark or a control character; BIRD has no way to write it")
    return f'"{text}"'


def check_password(password: str, what: str) -> str:
    """Return a password that TCP MD5 (RFC 2385) and BIRD accept. Raises ConfigError; its text does not contain the password."""
    quoted(password, what)
    size = len(password.encode(errors="surrogateescape"))
    if not 0 < size <= MAX_PASSWORD_BYTES:
        raise ConfigError(f"{what} has {size} bytes; a TCP MD5 password has 1 to {MAX_PASSWORD_BYTES}")
    return password


def _filter(settings: BgpSettings) -> Iterator[str]:
    """Yield the export filter: the static routes, with the communities (RFC 1997, RFC 8092)."""
    yield "filter announced {"
    yield f'  if proto != "{_table(Family.IPV4)}" && proto != "{_table(Family.IPV6)}" then reject;'
    for community in settings.communities:
        kind = "bgp_community" if len(community) == 2 else "bgp_large_community"
        yield f"  {kind}.add(({', '.join(map(_number, community))}));"
    yield "  accept;"
    yield "}"


def _session(settings: BgpSettings, session: PeerSession) -> Iterator[str]:
    peer = session.peer
    family = Family.of(peer.address)
    far = peer.multihop > 1
    # BIRD needs the local address of a BFD session that crosses routers; otherwise the device determines it
    local = f" {_ip(session.local, family)}" if far and session.local else ""
    yield f"protocol bgp {session.name} {{"
    yield f"  local{local} port {_number(settings.port)} as {_number(settings.local_asn)};"
    yield f"  neighbor {_ip(peer.address, family)} port {_number(peer.port)} as {_number(peer.asn)};"
    yield f"  {f'multihop {_number(peer.multihop)}' if far else 'direct'};"
    yield "  debug { states };"  # with it the log has the time at which an error ended
    yield f"  hold time {_number(round(peer.hold_time_s))};"
    yield f"  {TIMES}"
    yield f"  graceful restart {'on' if settings.graceful_restart else 'off'};"
    if session.password:
        yield f"  password {quoted(session.password, 'the password')};"
    if peer.bfd and _has_bfd(session):
        interval_us = max(1, round(peer.bfd.interval_s * 1_000_000))
        yield f"  bfd {{ interval {interval_us} us; multiplier {_number(peer.bfd.multiplier)}; }};"
    for each in Family:
        hop = _next_hop(session, each)
        if hop is not None:
            yield f"  {_channel(each)} {{ import none; export filter announced; {hop}}};"
    yield "}"


def _has_bfd(session: PeerSession) -> bool:
    return bool(session.peer.bfd and (session.peer.multihop <= 1 or session.local))


def _next_hop(session: PeerSession, family: Family) -> str | None:
    """Return the next hop of a family's routes (None: there is none), both families over one session (RFC 4760).

    The family of the session needs no setting. The other one uses the node's address on the same device; IPv4 from a node
    without one uses the IPv6 next hop (RFC 8950), if the peer supports it.
    """
    if Family.of(session.peer.address) is family:
        return ""
    if own := session.local4 if family is Family.IPV4 else session.local6:
        return f"next hop address {_ip(own, family)}; "
    return "extended next hop on; " if family is Family.IPV4 else None


def unreachable_families(session: PeerSession) -> set[Family]:
    """Return the families whose routes cannot be announced to a peer."""
    return {family for family in Family if _next_hop(session, family) is None}


def _table(family: Family) -> str:
    return f"vips{family.digit}"


def _channel(family: Family) -> str:
    return f"ipv{family.digit}"


def _number(value: int) -> str:
    return f"{value:d}"  # a text or a fraction is a TypeError or ValueError here, never syntax


def _ip(address: bytes, family: Family) -> str:
    if len(address) != family.address_bytes:
        raise ValueError(f"{address!r} is not an address of {family.name}")
    return format_ip(address)
