"""The network of BGP trials: the nodes of a LAN, and a router with BIRD in front of the client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.cloud.announced import Lbagent
from bench.cloud.gaps import WITHIN_S, RoutedGaps
from bench.cloud.stage import NET, SERVICES, Lan, Obj, service
from tests.lab.bird_router import BirdRouter
from tests.lab.netns import Namespace, veth, wait_for

ROUTER, OUTSIDE = f"{NET}.250", "10.20.0"
POOLS: Obj = {
    "pools": [{"name": "public", "addresses": ["172.31.78.0/28"], "announce": ["bgp"]}],
    "bgp": {"localASN": 64512, "peers": [{"address": ROUTER, "asn": 64513, "bfd": {"interval": "300ms", "multiplier": 3}}]},
}  # fmt: skip
NEIGHBOUR = """
protocol bgp node{number} {{
  local as 64513;
  neighbor {net}.{number} as 64512;
  bfd on; graceful restart on;
  connect delay time 1; connect retry time 2; error wait time 1, 2;
  ipv4 {{ import all; export none; }};
}}
"""


@contextlib.contextmanager
def routed(lan: Lan, folder: Path) -> Iterator[RoutedGaps]:
    """Start a router and agents that announce to it; yield the trials. Raises NoBird."""
    router, outside = lan.join("router", ROUTER), Namespace("outside", lan.tag)
    lan.closing.callback(outside.delete)
    veth(outside, "eth0", router, "out0")
    outside.checksum_offload_off("eth0")
    router.ip(f"addr add {OUTSIDE}.1/24 dev out0")
    router.sysctl("ipv4/fib_multipath_hash_policy", 1)  # hash ports too: connections of one client use all routes
    outside.ip(f"addr add {OUTSIDE}.2/24 dev eth0", f"route add default via {OUTSIDE}.1")
    for name in lan.nodes:
        lan.spaces[name].ip(f"route add {OUTSIDE}.0/24 via {ROUTER}")
    bird = BirdRouter(router, folder)
    lan.closing.callback(bird.close)
    bird.start(ROUTER, "".join(NEIGHBOUR.format(number=number, net=NET) for number in range(1, len(lan.nodes) + 1)))
    Lbagent(lan, folder, POOLS).start()
    lan.plane.ask("POST", SERVICES, service("routed"))
    lan.add_backends("routed")
    try:
        address = wait_for(lambda: _address(lan), "an address", WITHIN_S)
        yield RoutedGaps(lan, outside, address, lambda: bird.routes().get(address, []))
    finally:
        lan.plane.send("DELETE", f"{SERVICES}/routed")


def _address(lan: Lan) -> Any:
    ingress = lan.plane.ask("GET", f"{SERVICES}/routed")["status"]["loadBalancer"].get("ingress", [])
    return ingress[0]["ip"] if ingress else ""
