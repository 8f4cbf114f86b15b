"""The only module that uses the package `pyroute2`, of which it needs the sockets for routes and links.

Its own code imports all the others (NDB, IPVS, nftables, WireGuard): 5 MiB and 0.03 s. Those sockets import a test library, the
kinds of traffic control one by one, what reads names of numbers, what runs processes elsewhere: 3 MiB and half of their time.
"""

import os
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from lbagent.partial_imports import imported_late, put_in_place, stand_ins

_NAMES = "pyroute2.netlink.rt_files"  # reads names for numbers from /etc/iproute2
_NAME_FILES = (
    "Group", "NlProtos", "RtAddrProtos", "RtDsfield", "RtProtos", "RtRealms", "RtScopes", "RtTables", "TcCls",
)  # fmt: skip


class _Mock:
    """Stands for unittest.mock.Mock, which is the queue of one kind of socket: it takes everything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _unused() -> dict[str, Any]:
    """Return stand-ins for what these sockets import and this process most probably does not use."""
    traffic_control = "pyroute2.netlink.rtnl.tcmsg"
    folders = getattr(find_spec(traffic_control), "submodule_search_locations", None) or []
    kinds = [name.partition(".")[0] for folder in folders for name in os.listdir(folder)]
    names = [f"{traffic_control}.{kind}" for kind in kinds if kind.startswith(("cls_", "sched_"))]
    return {
        "multiprocessing": imported_late("multiprocessing", "Pipe", "Process", "Queue"),
        "pyroute2.iproute.ipmock": {"IPEngine": None},  # a kernel for tests of pyroute2
        _NAMES: imported_late(_NAMES, *(f"{kind}File" for kind in _NAME_FILES)),
        "unittest": {"mock": SimpleNamespace(Mock=_Mock)},
        **{name: imported_late(name) for name in names},
    }


put_in_place("pyroute2")
with stand_ins(_unused()):
    from pyroute2.iproute.linux import AsyncIPRoute, IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

__all__ = ["AsyncIPRoute", "IPRoute", "NetlinkError"]
