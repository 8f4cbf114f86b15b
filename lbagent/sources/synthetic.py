"""Generated Services, for benchmarks: `--synthetic SERVICES:BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lbagent.errors import ConfigError
from lbagent.model.address import L4Type
from lbagent.model.family import Family
from lbagent.model.message import Message
from lbagent.objects.records import (
    SYNTHETIC,
    Endpoint,
    EndpointSlice,
    ObjectChange,
    ObjectSnapshot,
    Origin,
    Service,
    ServicePort,
    SlicePort,
)
from lbagent.objects.source import OnChange, initial_changes

MAX_SERVICES = 60_000  # service ids have 16 bits
MAX_BACKENDS = 1 << 20  # backend ids have 20 bits
_VIPS = int.from_bytes(bytes((10, 96, 0, 1)), "big")
_PODS = int.from_bytes(bytes((10, 128, 0, 1)), "big")


def parse_synthetic(text: str) -> tuple[int, int]:
    """Return (services, backends of each) of `SERVICES:BACKENDS`. Raises ConfigError."""
    services, colon, backends = text.partition(":")
    if not (colon and services.isdecimal() and backends.isdecimal()):
        raise ConfigError(f"--synthetic: {text!r} is not SERVICES:BACKENDS, as in 10000:10")
    if int(services) > MAX_SERVICES or int(services) * int(backends) > MAX_BACKENDS:
        raise ConfigError(
            f"--synthetic: {text!r} is more than {MAX_SERVICES} services or {MAX_BACKENDS} backends in all"
        )
    return int(services), int(backends)


class SyntheticSource:
    """ClusterIP Services synthetic/svc-N on 10.96.0.1 and up, port 80, with backends on 10.128.0.1 and up, port 8080.

    `change` removes the last backend of a Service, or adds it again: a single change to measure.
    """

    name = SYNTHETIC
    trusted = listed = True
    remembered = False
    remedy, held, distrust = "", 0, None

    def __init__(self, services: int, backends: int) -> None:
        self.synced = asyncio.Event()
        self._on_change: OnChange | None = None
        self._services = {service.key: service for service in (_service(number) for number in range(services))}
        self._slices = {piece.key: piece for piece in (_slice(number, backends) for number in range(services))}
        self._backends = backends

    def snapshot(self) -> ObjectSnapshot:
        """Return all of them."""
        return ObjectSnapshot(services=dict(self._services), slices=dict(self._slices))

    def problems(self) -> Sequence[Message]:
        """Return nothing: there are no problems."""
        return ()

    def resume(self) -> None:
        """Do nothing: the same objects are generated again."""

    async def run(self, on_change: OnChange) -> None:
        """Report all of them once; `change` reports the rest."""
        self._on_change = on_change
        on_change(initial_changes(self.snapshot()))
        self.synced.set()
        await asyncio.Event().wait()

    def change(self, number: int) -> ObjectChange:
        """Remove or add the last backend of Service `number`, and report the change."""
        key = f"synthetic/svc-{number}"
        old = self._slices[key]
        new = _slice(number, self._backends - (len(old.endpoints) == self._backends), self._backends)
        self._slices[key] = new
        change = ObjectChange("EndpointSlice", key, old, new)
        if self._on_change:
            self._on_change([change])
        return change


def _service(number: int) -> Service:
    return Service(
        "synthetic",
        f"svc-{number}",
        Origin(order=number, source=SYNTHETIC),
        families=(Family.IPV4,),
        cluster_ips=((_VIPS + number).to_bytes(4, "big"),),
        ports=(ServicePort("http", L4Type.TCP, 80),),
    )


def _slice(number: int, count: int, spacing: int = 0) -> EndpointSlice:
    first = _PODS + number * (spacing or count)
    endpoints = tuple(Endpoint((first + index).to_bytes(4, "big")) for index in range(count))
    ports = (SlicePort("http", L4Type.TCP, 8080),)
    return EndpointSlice(
        "synthetic",
        f"svc-{number}",
        f"svc-{number}",
        Family.IPV4,
        Origin(order=number, source=SYNTHETIC),
        ports,
        endpoints,
    )
