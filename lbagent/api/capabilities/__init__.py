"""The capabilities of the agent, a file each: routes, lists and metrics, as rows (api/capability.py). A new one is a line here.

`CAPABILITY` of a file is its row; the value of its line are the names of its routes, by which AgentClient finds it and imports
no other one. The order is that of `/metrics` and docs/api.md. A file imports the standard library and `api/capability.py`, the rest
for types and inside functions: the command line reads these files, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lbagent.api.capability import Capability, Route

CAPABILITIES: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "sync": ("verify", "wait_change"),
    "generations": ("history",),
    "data_planes": ("differences", "repair"),
    "second_list": ("object_differences", "repair_objects"),
    "kube_proxy": (),
    "traffic": (),
    "other_proxy": ("shadow", "reset_shadow"),
    "migration_requests": ("migration", "request_migration"),
    "bgp": ("bgp_peers",),
    "vips": ("vips", "why_vip"),
    "nodes": (),
    "native_pools": ("apilb",),
    "services": ("services",),
    "node_backends": ("backends", "backend", "set_state", "clear_state", "start_drain", "end_flows", "drains"),
    "backend_checks": (),
    "explain": ("explain",),
    "sampling": ("sampling",),
    "summary": ("summary", "events"),
    "metrics": ("metrics",),
}


def capability(name: str) -> Capability[Any]:
    """Import a capability."""
    found: Capability[Any] = import_module(f"lbagent.api.capabilities.{name}").CAPABILITY
    return found


def every_capability() -> Iterator[Capability[Any]]:
    """Import all of them."""
    return map(capability, CAPABILITIES)


def route_of(name: str) -> Route[Any]:
    """Import the capability that has the route with this name. Raises StopIteration without one."""
    file = next(file for file, routes in CAPABILITIES.items() if name in routes)
    return next(route for route in capability(file).routes if route.name == name)
