"""How a server is probed, and how many answers change its state."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from lbagent.model.address import L3n4Addr


class ProbeKind(StrEnum):
    """What is sent, and which answer is up. probe_kinds.py has the probe of each."""

    TCP = "tcp"  # the server's kernel accepts a connection
    HTTP = "http"  # GET, 200-399 is up
    HTTPS = "https"  # the same over TLS
    UDP = "udp"  # a datagram is not refused
    GRPC = "grpc"  # grpc.health.v1, SERVING is up


class ProbeSpec(Struct, frozen=True, kw_only=True):
    """How a server's health is probed. Times are seconds.

    `via`: a frontend through which probes reach the server, where the data plane can send them to this backend; else directly.
    """

    kind: ProbeKind = ProbeKind.HTTPS
    path: str = "/healthz"  # of http and https; of grpc the name of a service after a slash
    interval: float = 2.0
    timeout: float = 2.0
    fall: int = 3
    rise: int = 2
    ca_file: str = ""  # of https: without it the certificate is not verified
    host: str = "kube-apiserver"  # the Host header of http and https; '': the address and port of the server
    via: L3n4Addr | None = None
