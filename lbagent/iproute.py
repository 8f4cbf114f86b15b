"""The only module that uses the package `pyroute2`, of which it needs the sockets for routes and links.

Its own code imports all the others (NDB, IPVS, nftables, WireGuard): 5 MiB and 0.03 s.
"""

from lbagent.partial_imports import put_in_place

put_in_place("pyroute2")

from pyroute2.iproute.linux import AsyncIPRoute, IPRoute  # noqa: E402 - the package must be in place before
from pyroute2.netlink.exceptions import NetlinkError  # noqa: E402

__all__ = ["AsyncIPRoute", "IPRoute", "NetlinkError"]
