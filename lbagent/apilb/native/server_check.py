"""The health check of a backend by a native pool, as `backend get` shows it."""

from __future__ import annotations

from msgspec import Struct


class ServerCheck(Struct):
    """One check of one address. Pools with the same check of a server share it."""

    pool: str  # POOL/NAME
    server: str  # as in its file: HOST or HOST:PORT
    kind: str  # tcp, http, https, udp
    interval_s: float
    up: bool  # also while it was not checked yet
    since: float  # seconds since the epoch; 0: not checked yet
    last: str  # the last check, in words; why it cannot be checked
    transitions: int  # from up to down or back
    results: dict[str, int]  # checks by how they ended
