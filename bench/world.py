"""The services of every program under test: 10,000, of which a few are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.wrapper import UDP, ip

SERVICES = 10_000
BACKENDS = 256  # of the measured service: 28,976 SNAT ports of each must suffice for all flows
TABLE = 16381


@dataclass(frozen=True)
class Service:
    """One frontend and its backends."""

    vip: bytes
    port: int
    proto: int
    backends: tuple[tuple[bytes, int], ...]
    local: bool = False


@dataclass(frozen=True)
class World:
    """Everything of one family. `remote` and `local` are measured, `others` only fill the maps."""

    family: int
    node: bytes  # SNAT address
    client: bytes  # of flow 0
    flooder: bytes
    stranger: bytes  # an address no service has
    remote: Service
    remote_udp: Service
    local: Service
    others: tuple[Service, ...]
    singles: tuple[Service, ...] = ()  # with one backend each


def _address(family: int, net4: str, net6: str, number: int) -> bytes:
    if family == 4:
        return (int.from_bytes(ip(net4), "big") + number).to_bytes(4, "big")
    return (int.from_bytes(ip(net6), "big") + number).to_bytes(16, "big")


def world(family: int, services: int = SERVICES, backends: int = BACKENDS, singles: Sequence[int] = ()) -> World:
    """Create the services of a family; `singles`: protocols of services with one backend each."""

    def vip(number: int) -> bytes:
        return _address(family, "10.96.0.0", "fd00:96::", number)

    far = tuple((_address(family, "10.1.0.0", "fd00:1::", 10 + n), 8080) for n in range(backends))
    near = tuple((_address(family, "10.244.0.0", "fd00:244::", 10 + n), 8080) for n in range(backends))
    others = tuple(Service(vip(256 + n), 80, 6, far[n % backends : n % backends + 1]) for n in range(services - 3))
    alone = tuple(
        Service(
            vip(64 + n), 53 if proto == UDP else 80, proto, ((_address(family, "10.2.0.0", "fd00:2::", 10 + n), 8080),)
        )
        for n, proto in enumerate(singles)
    )
    return World(
        family,
        node=_address(family, "10.0.0.1", "fd00::1", 0),
        client=_address(family, "172.16.0.0", "fd00:172::", 0),
        flooder=_address(family, "10.198.0.0", "fd00:198::", 0),
        stranger=_address(family, "192.0.2.77", "fd00:192::77", 0),
        remote=Service(vip(1), 80, 6, far),
        remote_udp=Service(vip(1), 53, 17, far),
        local=Service(vip(2), 80, 6, near, local=True),
        others=others,
        singles=alone,
    )
