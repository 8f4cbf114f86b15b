"""The objects of an instance of native mode: a Service of namespace `apilb` and an EndpointSlice for each IP family. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from lbagent.apilb.files.field_values import parse_bind, parse_server
from lbagent.apilb.instance import Instance
from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.message import Message
from lbagent.objects.records import Endpoint, EndpointSlice, Origin, Service, ServicePort, SlicePort
from lbagent.probes.probe_spec import ProbeSpec

NAMESPACE = "apilb"
KIND = "apilb"  # of a pool, in messages
PORT_NAME = "https"


class Bind(Struct, frozen=True):
    """The address on which an instance is served, and a port in host order. [::] is every address of both families."""

    addresses: tuple[bytes, ...]
    port: int

    @classmethod
    def parse(cls, text: str) -> Bind:
        """Read ADDRESS:PORT or [ADDRESS]:PORT. Raises ValueError."""
        found = parse_bind(text)
        address = parse_ip(found.host)
        if address == Family.IPV6.unspecified:  # as for a listening socket
            return cls((Family.IPV4.unspecified, address), found.port)
        return cls((address,), found.port)

    def holds(self, address: bytes, port: int) -> bool:
        """Return whether this bind serves connections to this address and port."""
        anywhere = Family.of(address).unspecified in self.addresses
        return port == self.port and (anywhere or address in self.addresses)


class ServerName(Struct, frozen=True):
    """A server of an instance: HOST or HOST:PORT. `text` is as in its file."""

    text: str
    host: str
    port: int

    @property
    def address(self) -> bytes | None:
        """The packed address; None for a name."""
        try:
            return parse_ip(self.host)
        except ValueError:
            return None


def server_name(text: str, port: int) -> ServerName:
    """Read HOST[:PORT]; `port` is that of the bind. Raises ValueError."""
    found = parse_server(text)
    return ServerName(text, found.host, found.port or port)


class ServedInstance(Struct, frozen=True):
    """An instance that this host serves, with all its values parsed. `origin` is the place of its file."""

    instance: Instance
    bind: Bind
    servers: tuple[ServerName, ...]
    check: ProbeSpec
    origin: Origin

    @property
    def key(self) -> str:
        """The key of its Service."""
        return f"{NAMESPACE}/{self.instance.name}"

    @property
    def full_name(self) -> str:
        """Its name in messages, after KIND."""
        return full_name(self.instance)


def full_name(instance: Instance) -> str:
    """Return `POOL/NAME`."""
    return f"{instance.pool}/{instance.name}"


def served_instance(instance: Instance, origin: Origin) -> ServedInstance:
    """Parse an instance. Raises ValueError."""
    bind = Bind.parse(instance.bind_address)
    servers = tuple(server_name(text, bind.port) for text in instance.servers)
    return ServedInstance(instance, bind, servers, instance.health_check or ProbeSpec(), origin)


Addresses = Mapping[str, Sequence[bytes]]  # by name of a host


def addresses_of(pool: ServedInstance, known: Addresses) -> dict[ServerName, tuple[L3n4Addr, ...]]:
    """Return the addresses of each server that can serve the bind: those of its families."""
    families = {Family.of(address) for address in pool.bind.addresses}
    found = {}
    for server in pool.servers:
        packed = server.address
        every = [packed] if packed is not None else known.get(server.host, ())
        found[server] = tuple(L3n4Addr(each, server.port) for each in every if Family.of(each) in families)
    return found


def objects_of(
    pool: ServedInstance, servers: Mapping[ServerName, Sequence[L3n4Addr]], down: Mapping[L3n4Addr, bool]
) -> tuple[Service, list[EndpointSlice]]:
    """Return the Service of a pool and its slices: one for each IP family and port. `down` returns whether an address is down."""
    ports = (ServicePort(PORT_NAME, L4Type.TCP, pool.bind.port),)
    families = tuple(dict.fromkeys(Family.of(address) for address in pool.bind.addresses))
    name = pool.instance.name
    service = Service(NAMESPACE, name, pool.origin, families=families, ports=ports, binds=pool.bind.addresses)
    groups: dict[tuple[Family, int], list[Endpoint]] = {}
    for address in dict.fromkeys(each for group in servers.values() for each in group):
        state = BackendState.QUARANTINED if down.get(address) else None
        endpoint = Endpoint(address.address, state=state)
        groups.setdefault((address.family, address.port), []).append(endpoint)
    slices = [
        EndpointSlice(
            NAMESPACE,
            f"{name}-ipv{family}-{port}",
            name,
            family,
            pool.origin,
            (SlicePort(PORT_NAME, L4Type.TCP, port),),
            tuple(endpoints),
        )
        for (family, port), endpoints in sorted(groups.items())
    ]
    return service, slices


def messages_of(
    pool: ServedInstance, servers: Mapping[ServerName, Sequence[L3n4Addr]], known: Addresses
) -> list[Message]:
    """Return the messages about the servers of a pool."""
    found = []
    for server, addresses in servers.items():
        if addresses:
            continue
        has_any = server.address is not None or bool(known.get(server.host))
        problem = (
            f"{server.text} has no address of the IP family of {pool.instance.bind_address}"
            if has_any
            else f"{server.text} has no address: the name is not resolved"
        )
        origin = pool.origin
        kept = "it gets no connections"
        found.append(Message(problem, kept, "servers", KIND, pool.full_name, origin.file, origin.line))
    return found
