"""How a server is probed, and how many answers change its state."""

from __future__ import annotations

from msgspec import Struct


class ProbeSpec(Struct, frozen=True, kw_only=True):
    """How a server's health is probed: HTTPS GET, 200-399 is up."""

    path: str = "/healthz"
    interval: float = 2.0
    timeout: float = 2.0
    fall: int = 3
    rise: int = 2
    ca_file: str = ""  # without it the certificate is not verified
    host: str = "kube-apiserver"  # the Host header
