"""Flows as JSON objects, one line each, and as keys of counts. The keys are a contract (docs/operations.md, "Flows").

A line is made of parts that many flows have in common and that are kept, as there may be a million flows: 1 us each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from socket import AF_INET, AF_INET6, inet_ntop

from msgspec import Struct
from msgspec.structs import replace

from lbagent.maps import backend_codec
from lbagent.maps.flow_filter import FlowFilter
from lbagent.maps.flow_layout import (
    BACKEND_GENERATION_TURNED,
    FLOW,
    FORWARD_MODE_SHIFT,
    FORWARD_PORT_BITS,
    FlowState,
    ForwardMode,
)
from lbagent.maps.flow_reader import SPILLED, FlowMaps, RawFlow, host_ports
from lbagent.maps.flow_settings import FlowSettings
from lbagent.maps.layout import PATH, PATH_L4_SHIFT, PathL4
from lbagent.maps.map_names import family_map
from lbagent.model.family import Family

Select = Callable[[RawFlow], bool]
NameOf = Callable[[int, str], str | None]  # service id, frontend -> NAMESPACE/NAME

STATE_WORDS = tuple(state.name.lower() for state in FlowState)
L4_WORDS = ("TCP", "UDP", "SCTP", "NONE")  # by PathL4
MODE_WORDS: Mapping[int, str] = {int(mode): mode.name.lower() for mode in ForwardMode}
SOCKET_MODE = "socket"
_V = FLOW[Family.IPV4].fields  # of the value word, which both families have at the same bits
_STATE, _FORWARD, _BACKEND_GENERATION, _L4 = (
    _V[name].shift for name in ("state", "forward", "backend_generation", "l4")
)
_BACKEND_BITS = _V["backend_generation"].width


class FlowBackend(Struct, frozen=True, gc=False):
    """A backend as a flow has it. `ident` 0: the flow has none, or its id has another backend now."""

    ident: int = 0
    address: bytes = b""
    port: int = 0
    l4: PathL4 = PathL4.TCP
    source: str = ""  # from which a packet to it is sent with SNAT

    @property
    def keeps_port(self) -> bool:
        """Whether it gets packets at the port of their frontend: that is a range of ports."""
        return self.ident != 0 and not self.port

    def at(self, frontend_port: int) -> FlowBackend:
        """Return it with the port at which it gets the packets of a flow to this port."""
        return replace(self, port=frontend_port) if self.keeps_port else self

    @property
    def text(self) -> str | None:
        """`10.0.0.1:8080/TCP`; None if there is none."""
        return f"{host_text(self.address)}:{self.port}/{L4_WORDS[self.l4]}" if self.ident else None


def address_text(address: bytes) -> str:
    """Return the text of a packed address."""
    return inet_ntop(AF_INET if len(address) == 4 else AF_INET6, address)


def host_text(address: bytes) -> str:
    """Return the text of a packed address, IPv6 in brackets."""
    return address_text(address) if len(address) == 4 else f"[{address_text(address)}]"


class FlowLines:
    """Texts and filters of the flows in some maps. `now`: the clock of last seen; None: unknown."""

    def __init__(self, maps: FlowMaps, settings: FlowSettings, now: int | None, name_of: NameOf) -> None:
        self._maps, self.settings, self._now, self.name_of = maps, settings, now, name_of
        self._backends: dict[tuple[Family, int], FlowBackend] = {}
        self._frontends: dict[tuple[bytes, int, int, int], tuple[str, str | None]] = {}

    # --- parts of a flow ---

    def backend(self, family: Family, value: int) -> FlowBackend:
        """Return the backend of a value word. The record of a removed backend has the next generation, and its address.

        Raises KernelError.
        """
        key = family, value >> _BACKEND_GENERATION
        found = self._backends.get(key)
        if found is None:
            found = self._backends[key] = self._read_backend(family, key[1])
        return found

    def _read_backend(self, family: Family, number: int) -> FlowBackend:
        ident, generation = number >> _BACKEND_BITS, number & (1 << _BACKEND_BITS) - 1
        record, name = PATH[family], family_map(family, "path")
        if not ident or (ident + 1) * record.size > self._maps.specs[name].value_size:
            return FlowBackend()
        with self._maps.window(name, ident * record.size, record.size) as view:
            path = bytes(view)
        address, source, port, gen, flags, *_ = record.codec.unpack(path)
        is_live = backend_codec.is_live(path)
        # value_knows_path() of ct_value.h: a flow whose backend was taken has a generation with another top bit
        if (gen - generation) % BACKEND_GENERATION_TURNED > (not is_live) or not any(address):
            return FlowBackend()
        stride = self.settings.extra_snat_stride
        l4 = PathL4(flags >> PATH_L4_SHIFT & max(PathL4))
        return FlowBackend(
            ident % stride if stride else ident, address, int.from_bytes(port, "big"), l4, host_text(source)
        )

    def frontend(self, vip: bytes, vip_port: int, own: int, service: int) -> tuple[str, str | None]:
        """Return a flow's frontend and the name of its Service. `vip_port`, `own`: as in RawFlow."""
        key = vip, vip_port, own >> _L4, service
        found = self._frontends.get(key)
        if found is None:
            text = f"{host_text(vip)}:{host_ports()[vip_port]}/{L4_WORDS[key[2]]}"
            found = self._frontends[key] = text, self.name_of(service, text)
        return found

    # --- filters ---

    def selects(self, wanted: FlowFilter, family: Family) -> Select | None:
        """Return the filter of a family's flows; None: every flow is selected. Raises as `backend`."""
        tests = [*self._address_tests(wanted, family), *self._word_tests(wanted)]
        if not tests:
            return None
        if len(tests) == 1:
            return tests[0]
        return lambda raw: all(test(raw) for test in tests)

    def _word_tests(self, wanted: FlowFilter) -> list[Select]:
        tests: list[Select] = []
        if (l4 := wanted.l4) is not None:
            tests.append(lambda raw: raw[1] >> _L4 == l4)
        if (state := wanted.state) is not None:
            tests.append(lambda raw: raw[6] >> _STATE & 3 == state)
        if wanted.idle_over_s is not None and self._now is not None:
            now, limit = self._now, wanted.idle_over_s / (self.settings.tick_s or 1.0)
            tests.append(lambda raw: (now - raw[7] & 0xFFFF) > limit)
        return tests

    def _address_tests(self, wanted: FlowFilter, family: Family) -> list[Select]:
        tests: list[Select] = []
        if client := wanted.client:
            tests.append(_client_test(client.address, client.bits, client.port))
        if frontend := wanted.frontend:
            ports = host_ports()
            tests.append(lambda raw: frontend.matches(raw[5], ports[raw[4]], raw[1] >> _L4))
        if backend := wanted.backend:
            ports = host_ports()

            def has_backend(raw: RawFlow) -> bool:
                found = self.backend(family, raw[6]).at(ports[raw[4]])
                return found.ident != 0 and backend.matches(found.address, found.port, found.l4)

            tests.append(has_backend)
        if service := wanted.service:
            tests.append(lambda raw: self.frontend(raw[5], raw[4], raw[1], raw[8])[1] == service)
        return tests

    # --- lines ---

    def lines_of(self, family: Family) -> Callable[[Iterable[RawFlow]], list[str]]:
        """Return the function that makes the JSON objects of a family's flows, without line ends. It raises as `backend`.

        Its loop has no call for parts that are kept, and no look-up in a table that exceeds the processor's cache: each of these
        costs as much as the rest of a flow.
        """
        ntop, af = inet_ntop, int(AF_INET if family is Family.IPV4 else AF_INET6)
        heads = tuple(
            f'{{"family":"ipv{family}","protocol":"{word}","client":"{"[" * (family == 6)}' for word in L4_WORDS
        )
        after_client = "]:" if family is Family.IPV6 else ":"
        fronts: dict[tuple[bytes, int, int, int], str] = {}
        ways: dict[int, tuple[str, bool]] = {}
        ends: dict[int, str] = {}

        def lines(piece: Iterable[RawFlow]) -> list[str]:
            out = []
            for at, own, port, client, vip_port, vip, value, seen, service, _ in piece:
                l4, forward = own >> _L4, value >> _FORWARD & 0xFFFF
                front = fronts.get(key := (vip, vip_port, l4, service))
                if front is None:
                    front = fronts[key] = self._front(vip, vip_port, own, service)
                # Many flows have one backend and generation, with SNAT from many ports; without, the whole forward word is kept.
                number = value >> _BACKEND_GENERATION if forward & FORWARD_PORT_BITS else ~(value >> _FORWARD)
                known = ways.get(number)
                if known is None:
                    known = self._way(family, value, vip_port)
                    if not self.backend(family, value).keeps_port:  # else it depends on the flow's port
                        ways[number] = known
                way, is_snat = known
                end = ends.get(times := seen << 5 | l4 << 3 | value >> _STATE << 1 & 6 | is_snat)
                if end is None:
                    end = ends[times] = self._end(l4, value >> _STATE & 3, seen, "" if is_snat else "null")
                out.append(
                    f"{heads[l4]}{ntop(af, client)}{after_client}{(port & 0xFF) << 8 | port >> 8}{front}{way}"
                    f"{(forward & 0xFF) << 8 | forward >> 8 if is_snat else ''}{end}"
                    f"{'true}' if at == SPILLED else 'false}'}"
                )
            return out

        return lines

    def _front(self, vip: bytes, vip_port: int, own: int, service: int) -> str:
        text, name = self.frontend(vip, vip_port, own, service)
        return f'","frontend":"{text}","service":{json.dumps(name)},'

    def _way(self, family: Family, value: int, vip_port: int) -> tuple[str, bool]:
        """Return the part with backend and mode, and whether the SNAT port comes behind it: the node's address is known."""
        found, forward = self.backend(family, value).at(host_ports()[vip_port]), value >> _FORWARD & 0xFFFF
        mode = ForwardMode.SNAT if forward & FORWARD_PORT_BITS else forward >> FORWARD_MODE_SHIFT
        text = f'"backend":{json.dumps(found.text)},"backend_id":{found.ident or "null"},'
        text += f'"mode":"{MODE_WORDS.get(mode, "unknown")}","snat":'
        if forward & FORWARD_PORT_BITS and found.source:
            return f'{text}"{found.source}:', True
        return text, False

    def _end(self, l4: int, state: int, seen: int, snat: str) -> str:
        """Return the part behind the SNAT port, or with `snat`, except the last value."""
        head, tick_s = f'{snat or chr(34)},"state":"{STATE_WORDS[state]}",', self.settings.tick_s
        if self._now is None or not tick_s:
            return f'{head}"idle_s":null,"expires_in_s":null,"spilled":'
        idle = self._now - seen & 0xFFFF
        left = max(0, self.settings.timeout(l4, state) - idle)
        return f'{head}"idle_s":{round(idle * tick_s)},"expires_in_s":{round(left * tick_s)},"spilled":'


def _client_test(network: bytes, bits: int, port: int | None) -> Select:
    shift = 8 * len(network) - bits
    wanted = int.from_bytes(network, "big") >> shift
    stored = None if port is None else int.from_bytes(port.to_bytes(2, "big"), sys.byteorder)
    if not shift:
        return lambda raw: raw[3] == network and stored in (None, raw[2])
    return lambda raw: int.from_bytes(raw[3], "big") >> shift == wanted and stored in (None, raw[2])
