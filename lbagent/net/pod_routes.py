"""Routes in this machine's kernel to the pods of other machines: those of one routing protocol number in one table.

The number identifies the owner (rtnetlink(7), rtm_protocol): routes of other programs are neither read nor changed.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from lbagent.errors import KernelError
from lbagent.iproute import AsyncIPRoute, NetlinkError
from lbagent.net.netlink_messages import TYPE_UNICAST, TYPES_REFUSING

SCOPE_NOWHERE = 255  # RT_SCOPE_NOWHERE: a deletion takes a route of any scope
_TYPE_NAMES = {6: "blackhole", 7: "unreachable", 8: "prohibit"}
_ADVICE = {
    errno.EEXIST: "another program has a route to it",
    errno.ENETUNREACH: "no device of this machine reaches the gateway",
    errno.EHOSTUNREACH: "no device of this machine reaches the gateway",
    errno.EPERM: "it needs CAP_NET_ADMIN",
}


class PodRoute(Struct, frozen=True):
    """A route; texts. `gateway` is '' for a route without one; `refuses`: blackhole and similar kinds."""

    destination: str
    gateway: str = ""
    refuses: str = ""


class PodRoutes:
    """The routes of one protocol number in one table."""

    def __init__(self, table: int, protocol: int) -> None:
        self._table, self._protocol = table, protocol

    async def list(self) -> list[PodRoute]:
        """Return them, both families. Raises KernelError."""
        found = []
        with _kernel_errors("reading routes", f"table {self._table}"):
            async with AsyncIPRoute() as ipr:
                for family in (socket.AF_INET, socket.AF_INET6):
                    async for message in await ipr.get_routes(family=family):
                        table = message.get_attr("RTA_TABLE") or message["table"]
                        if table == self._table and message["proto"] == self._protocol:
                            found.append(_read(message))
        return found

    async def add(self, destination: str, gateway: str) -> None:
        """Add a route; an existing one, of any program, is an error. Raises KernelError."""
        with _kernel_errors("making a route", f"{destination} via {gateway}"):
            async with AsyncIPRoute() as ipr:
                await ipr.route("add", dst=destination, gateway=gateway, table=self._table, proto=self._protocol)

    async def delete(self, route: PodRoute) -> None:
        """Remove a route that `list` returned; one that is gone is no error. Raises KernelError."""
        words: dict[str, Any] = {"dst": route.destination, "table": self._table, "proto": self._protocol}
        words["scope"] = SCOPE_NOWHERE
        if route.gateway:
            words["gateway"] = route.gateway
        if route.refuses:
            words["type"] = route.refuses
        if ":" in route.destination:
            words["family"] = socket.AF_INET6
        try:
            with _kernel_errors("removing a route", route.destination):
                async with AsyncIPRoute() as ipr:
                    await ipr.route("del", **words)
        except KernelError as error:
            if error.errno != errno.ESRCH:
                raise


def _read(message: Any) -> PodRoute:
    default = "::" if message["family"] == socket.AF_INET6 else "0.0.0.0"  # noqa: S104 - a destination
    destination = f"{message.get_attr('RTA_DST') or default}/{message['dst_len']}"
    via = message.get_attr("RTA_VIA")
    gateway = via["addr"] if via else message.get_attr("RTA_GATEWAY") or ""
    kind = message["type"]
    refuses = _TYPE_NAMES[kind] if kind in TYPES_REFUSING else ""
    return PodRoute(destination, gateway if kind == TYPE_UNICAST else "", refuses)


@contextmanager
def _kernel_errors(op: str, subject: str) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        raise KernelError(op, error.code, subject, _ADVICE.get(error.code, "")) from None
    except OSError as error:
        raise KernelError(op, error.errno or errno.EIO, subject) from None
