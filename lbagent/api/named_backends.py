"""Which backends a request names, and which Services a change of their state would leave without one. Pure.

A backend is named by address and port, by its Pod, by its IP address alone, by its node or by a Service that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from lbagent.errors import ConfigError, NotFound
from lbagent.model.address import ALL_PROTOCOLS, L3n4Addr, L4Type, format_ip, parse_ip
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import Cooperative
from lbagent.model.family import Family
from lbagent.model.service import SVC, ServiceName, SVCType
from lbagent.model.state import State
from lbagent.objects.pod_reference import is_pod_reference, parse_pod_reference

UNCHANGED = "nothing was changed"
MAX_NAMED = 5  # Services that a sentence names


class NamedBackends(Struct, kw_only=True, forbid_unknown_fields=True):
    """The backends that a request names. `node` and `service` together: those of this Service on this node."""

    command: ClassVar[str] = ""  # what a body of this kind is called in messages
    addresses: list[str] = []  # ADDRESS:PORT[/PROTOCOL], pod/NAMESPACE/NAME
    hosts: list[str] = []  # ADDRESS: every backend there
    node: str = ""
    service: str = ""  # NAMESPACE/NAME


class SetState(NamedBackends, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/backends/state."""

    command: ClassVar[str] = "set-state"
    state: str
    spare_last: bool = False  # refuse (409, `last_backend`) what would leave a Service without a backend


class StartDrain(NamedBackends, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/backends/drain."""

    command: ClassVar[str] = "drain"
    timeout_s: float
    spare_last: bool = False  # as in SetState


class ClearState(NamedBackends, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/backends/clear-state."""

    command: ClassVar[str] = "clear-state"


class EndFlows(NamedBackends, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/backends/end-flows."""

    command: ClassVar[str] = "drain --then reset"


class Cleared(Struct):
    """The answer to ClearState."""

    cleared: list[str]  # addresses and pod/NAMESPACE/NAME whose set state was forgotten
    backends: list[
        dict[str, object]
    ]  # BackendRow (capabilities/node_backends.py): those of them that are served, as they are now


class BackendSelection(NamedTuple):
    """Addresses of backends, each once: named by themselves, and found by IP address, node or Service; keys of Pods."""

    addresses: list[L3n4Addr]
    found: list[L3n4Addr]
    pods: list[str]

    def eligible_for(self, state: BackendState, known: Mapping[L3n4Addr, Backend]) -> list[L3n4Addr]:
        """Return the addresses without those that were only found and may not become `state` (a Pod that is terminating).

        When that leaves none, return all, so that the refusal names one.
        """
        eligible = [each for each in self.found if each in known and known[each].state.can_become(state)]
        return [*self.addresses, *eligible] or [*self.addresses, *self.found]


def named_backends(asked: NamedBackends, state: State, known: Collection[L3n4Addr]) -> BackendSelection:
    """Return what a request names; `known` are the backends there are.

    An address and port without a protocol stands for every protocol that is known there; one of which none is known is
    returned as it is (TCP without a protocol), so that the caller can report it. Raises ConfigError for a text that is no
    address and no Pod, NotFound for an IP address, node or Service without a backend.
    """
    pods = [_pod_key(text) for text in dict.fromkeys(asked.addresses) if is_pod_reference(text)]
    texts = [text for text in asked.addresses if not is_pod_reference(text)]
    addresses = dict.fromkeys(address for text in texts for address in _of_text(text, known))
    found = [address for text in asked.hosts for address in _of_host(text, known)]
    if asked.node or asked.service:
        found += _of_node_and_service(asked.node, asked.service, state)
    return BackendSelection(list(addresses), [each for each in dict.fromkeys(found) if each not in addresses], pods)


def _pod_key(text: str) -> str:
    try:
        return parse_pod_reference(text)
    except ValueError as error:
        raise ConfigError(f"{error}; {UNCHANGED}") from None


def _of_text(text: str, known: Collection[L3n4Addr]) -> list[L3n4Addr]:
    try:
        address = L3n4Addr.parse(text)
    except ValueError as error:
        raise ConfigError(f"{error}; {UNCHANGED}") from None
    if "/" in text:
        return [address]
    every = [replace(address, protocol=protocol) for protocol in ALL_PROTOCOLS]
    return [each for each in every if each in known] or [address]


def _of_host(text: str, known: Collection[L3n4Addr]) -> list[L3n4Addr]:
    try:
        host = parse_ip(text.removeprefix("[").removesuffix("]"))
    except ValueError as error:
        raise ConfigError(f"{error}; {UNCHANGED}") from None
    found = sorted((each for each in known if each.address == host), key=lambda each: each.sort_key)
    if not found:
        raise NotFound(f"no service has a backend with the address {format_ip(host)}; {UNCHANGED}")
    return found


def _of_node_and_service(node: str, service: str, state: State) -> list[L3n4Addr]:
    """Return the backends of a Service that are on a node; '' = of any."""
    rows: Sequence[SVC] = state.services
    if service:
        namespace, _, name = service.rpartition("/")
        key = ServiceName(namespace or "default", name)
        rows = state.by_name.get(key, ())
        if not rows:
            raise NotFound(f"no service {key} is served here; {UNCHANGED}")
    found = {each.address: None for svc in rows for each in svc.backends if node in ("", each.node_name)}
    if not found:
        what = f"service {service} has no backend" if service else "no service has a backend"
        raise NotFound(f"{what}{f' on node {node}' if node else ''}; {UNCHANGED}")
    return list(found)


_Port = tuple[ServiceName, str, L4Type, Family]  # of a Service: what clients see fail alone


def services_left_empty(state: State, taken: Collection[L3n4Addr]) -> Cooperative[list[str]]:
    """Return the ports of Services whose last backend is among `taken`, as `NAMESPACE/NAME` or `NAMESPACE/NAME:PORT`.

    Frontends of a port count together, so the last backend of this node is not the last one of a Service. HostPorts do not
    count: each has one backend by nature.
    """
    ports: dict[_Port, bool] = {}  # that lose a backend -> whether another one stays
    for svc in state.services:
        if not _is_host_port(svc) and any(each.address in taken for each in _eligible(svc)):
            ports[_port_of(svc)] = False
        yield
    for svc in state.services if ports else ():
        if not _is_host_port(svc) and (port := _port_of(svc)) in ports:
            ports[port] |= any(each.address not in taken for each in _eligible(svc))
        yield
    texts = (f"{name}:{word}" if word else str(name) for (name, word, _, _), stays in ports.items() if not stays)
    return list(dict.fromkeys(texts))


def _is_host_port(svc: SVC) -> bool:
    """Return whether it is a row of a Pod's hostPort; a Service that is bound to addresses of the host has named ports."""
    return svc.type is SVCType.HOST_PORT and not svc.port_name


def _port_of(svc: SVC) -> _Port:
    return svc.name, svc.port_name, svc.frontend.protocol, svc.frontend.family


def _eligible(svc: SVC) -> list[Backend]:
    """Return the backends to which new flows may go, at least when no other one is left."""
    eligible = (BackendState.ACTIVE, BackendState.TERMINATING)
    return [each for group in (svc.selectable, svc.unselectable) for each in group if each.state in eligible]


def some(names: Sequence[str]) -> str:
    """Return the first few of many names."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
