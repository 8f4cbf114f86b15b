"""The flows of the socket programs (`agent --socket-lb`): sockets whose peer is a backend in the place of a frontend.

The maps have the frontend and the backend by the cookie of a socket, and stay when it is closed. Whether it is open, its address
and its state are the kernel's (sock_diag), which lists the sockets of the calling thread's network namespace alone: a reader in
another one than the agent's sees no such flow.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from lbagent.kernel import sock_diag
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps.flow_filter import FlowFilter
from lbagent.maps.flow_layout import FlowState
from lbagent.maps.flow_lines import L4_WORDS, SOCKET_MODE, STATE_WORDS, NameOf, host_text
from lbagent.maps.layout import SOCK_CHOICE, SOCK_KEY, SOCK_VALUE, STREAM, PathL4
from lbagent.maps.map_names import family_map
from lbagent.model.family import Family

if TYPE_CHECKING:
    from lbagent.kernel.sock_diag import ConnectedSocket
    from lbagent.maps.pinned_maps import PinnedMaps

# By the state of a socket (linux/tcp_states.h): one side that has sent FIN may still receive. Any other state: both have.
_TCP_STATES = {1: FlowState.ESTABLISHED, 2: FlowState.NEW, 3: FlowState.NEW} | dict.fromkeys(
    (4, 5, 8), FlowState.ESTABLISHED
)
LEFT_OUT = "flows of the socket programs are left out: run it in the agent's network namespace to see them"
End = tuple[bytes, int]  # packed address, port in host order
Sockets = Callable[[], "list[ConnectedSocket]"]


class SocketFlow(Struct, frozen=True, gc=False):
    """One. `client` None: the socket is bound to no address. `backend_id` 0: the maps do not have it, as for TCP."""

    l4: PathL4
    client: End | None
    frontend: End
    backend: End
    backend_id: int
    state: FlowState

    @property
    def family(self) -> Family:
        """The family of frontend and backend; the socket may be an IPv6 socket that uses IPv4."""
        return Family.of(self.frontend[0])

    @property
    def frontend_text(self) -> str:
        """`10.96.0.10:80/TCP`."""
        return f"{_text(self.frontend)}/{L4_WORDS[self.l4]}"

    @property
    def backend_text(self) -> str:
        """`10.0.0.1:8080/TCP`."""
        return f"{_text(self.backend)}/{L4_WORDS[self.l4]}"

    @property
    def client_text(self) -> str | None:
        """`192.0.2.1:40000`."""
        return _text(self.client) if self.client else None

    @property
    def is_live(self) -> bool:
        """Whether it counts as a flow of its backend."""
        return self.state is not FlowState.CLOSING

    def line(self, name_of: NameOf) -> str:
        """Return its JSON object, with the keys of the flows of packets. Its ages are unknown: no packet of it is seen."""
        return json.dumps(
            {
                "family": f"ipv{self.family}",
                "protocol": L4_WORDS[self.l4],
                "client": self.client_text,
                "frontend": self.frontend_text,
                "service": name_of(0, self.frontend_text),
                "backend": self.backend_text,
                "backend_id": self.backend_id or None,
                "mode": SOCKET_MODE,
                "snat": None,
                "state": STATE_WORDS[self.state],
                "idle_s": None,
                "expires_in_s": None,
                "spilled": False,
            },
            separators=(",", ":"),
        )

    def is_selected(self, wanted: FlowFilter, name_of: NameOf) -> bool:
        """Whether a filter selects it; its idle time is unknown, so `idle_over_s` never does."""
        client, frontend, backend = wanted.client, wanted.frontend, wanted.backend
        return (
            self.family in wanted.families
            and wanted.l4 in (None, self.l4)
            and wanted.state in (None, self.state)
            and wanted.idle_over_s is None
            and (client is None or (self.client is not None and client.matches(*self.client, self.l4)))
            and (frontend is None or frontend.matches(*self.frontend, self.l4))
            and (backend is None or backend.matches(*self.backend, self.l4))
            and (not wanted.service or name_of(0, self.frontend_text) == wanted.service)
        )


def _text(end: End) -> str:
    return f"{host_text(end[0])}:{end[1]}"


def socket_flows_here(maps: PinnedMaps, netns: int) -> list[SocketFlow] | None:
    """Return the flows of sockets; None in another network namespace than that of the programs, whose cookie is `netns`.

    0: there are no socket programs. Raises KernelError.
    """
    if not netns:
        return []
    return socket_flows(maps) if sock_diag.netns_cookie() == netns else None


def socket_flows(
    maps: PinnedMaps, *, tcp: Sockets = sock_diag.tcp_sockets, udp: Sockets = sock_diag.udp_sockets
) -> list[SocketFlow]:
    """Return the flows of the open sockets of this network namespace, IPv4 first. Raises KernelError."""
    found: list[SocketFlow] = []
    with kernel_errors("list the sockets", "sock_diag"):
        streams = [(family, each) for family in Family for each in _streams(maps, family)]
        if streams:
            found += _of_tcp(streams, {sock.cookie: sock for sock in tcp()})
        datagrams = [(family, each) for family in Family for each in _datagrams(maps, family)]
        if datagrams:
            found += _of_udp(datagrams, {sock.cookie: sock for sock in udp()})
    return sorted(found, key=lambda flow: (flow.family, flow.l4))


def _streams(maps: PinnedMaps, family: Family) -> Iterator[tuple[int, End, End]]:
    """Yield cookie, backend and frontend of the records of TCP sockets, also of closed ones."""
    name, record = family_map(family, "stream"), STREAM[family]
    if not maps.has(name):
        return
    data = maps.get(name, bytes(4)) or b""
    for cookie, peer, address, peer_port, port, _ in struct.iter_unpack(record.codec.format, data):
        if cookie:
            yield cookie, (peer, int.from_bytes(peer_port, "big")), (address, int.from_bytes(port, "big"))


def _of_tcp(
    streams: list[tuple[Family, tuple[int, End, End]]], sockets: dict[int, ConnectedSocket]
) -> Iterator[SocketFlow]:
    for _, (cookie, backend, frontend) in streams:
        sock = sockets.get(cookie)
        if sock and sock.peer == backend:  # else the socket uses no frontend now
            state = _TCP_STATES.get(sock.state, FlowState.CLOSING)
            yield SocketFlow(PathL4.TCP, _client(sock), frontend, backend, 0, state)


def _datagrams(maps: PinnedMaps, family: Family) -> Iterator[tuple[int, End, int, End, int]]:
    """Yield cookie, address, kind of record, the other address, and backend id of the rows of UDP sockets."""
    name = family_map(family, "sock")
    if not maps.has(name):
        return
    key_of, value_of = SOCK_KEY[family].codec, SOCK_VALUE[family].codec
    for key, value in maps.items(name):
        cookie, at, at_port, kind, *_ = key_of.unpack(key)
        address, port, _, _, backend, *_ = value_of.unpack(value)
        yield cookie, (at, int.from_bytes(at_port, "big")), kind, (address, int.from_bytes(port, "big")), backend


def _of_udp(
    datagrams: list[tuple[Family, tuple[int, End, int, End, int]]], sockets: dict[int, ConnectedSocket]
) -> Iterator[SocketFlow]:
    """Yield a flow for each backend of an open socket; the rows of a former backend stay in the map."""
    choices = {
        (cookie, at): backend for _, (cookie, at, kind, _, backend) in datagrams if kind == SOCK_CHOICE
    }  # of unconnected sockets, by frontend
    for _, (cookie, backend, kind, frontend, ident) in datagrams:
        sock = sockets.get(cookie)
        if kind == SOCK_CHOICE or not sock:
            continue
        is_current = sock.peer == backend if sock.peer[1] else choices.get((cookie, frontend)) == ident
        if is_current:
            yield SocketFlow(PathL4.UDP, _client(sock), frontend, backend, ident, FlowState.ESTABLISHED)


def _client(sock: ConnectedSocket) -> End | None:
    address, port = sock.local
    return (address, port) if any(address) else None
