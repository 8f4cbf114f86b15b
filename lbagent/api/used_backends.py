"""The backends of a State, each once, with the Services that have it. Pure."""

from __future__ import annotations

from collections.abc import Collection

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.cooperative import Cooperative
from lbagent.model.state import State

Used = tuple[Backend, tuple[str, ...]]  # a backend in its most alive state, and the Services that have it


def backends_used(state: State, only: Collection[L3n4Addr] | None = None) -> Cooperative[list[Used]]:
    """Return each backend once, by id; `only` these when given. Without the index that `State.backends` would keep."""
    found: dict[L3n4Addr, Used] = {}
    for svc in state.services:
        here = (str(svc.name),)
        for backend in svc.backends:
            if only is not None and backend.address not in only:
                continue
            if (known := found.get(backend.address)) is None:
                found[backend.address] = backend, here
                continue
            best, names = known
            if (backend.gone, backend.state) < (best.gone, best.state):
                best = backend
            found[backend.address] = (best, names if here[0] in names else names + here)
        yield
    return sorted(found.values(), key=lambda used: used[0].id)
