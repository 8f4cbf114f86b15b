"""At home: an outside client, a real router, the mapping of provider edge, and the node's programs behind it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import yaml

from tests.cloud.edge.edge_lab import ASKS, UPNP, EdgeLab, manifest, play
from tests.e2e.cluster import Cluster
from tests.lab.manifests import put
from tests.lab.netns import Namespace
from tests.lab.router import HOST, OUTSIDE, WAN, Router, need_router
from tests.lab.topology import Lab
from tests.lab.traffic import request
from tests.lab.xdp import attach_pass

STRANGER = "11.0.0.3"
NODE_PORT = 30001


class HomeRouter(Router):
    """The router of a laboratory's node, which is on its LAN by the device `home`."""

    lan_device = "home"

    def __init__(self, lab: Lab, tag: str) -> None:
        super().__init__(tag)
        self._lab = lab

    def space(self, role: str) -> Namespace:
        return self._lab.node if role == "host" else super().space(role)

    def join(self, space: Namespace, device: str, address: str) -> None:
        super().join(space, device, address)
        space.checksum_offload_off(device)
        self.router.checksum_offload_off(f"br-{device}")
        attach_pass(self.router, f"br-{device}")

    def ask(self, source: str) -> str:
        """Send a request to the Service from outside; return the client's address at its backend."""
        with self.outside.entered(), socket.create_connection((WAN, 80), 3, (source, 0)) as client:
            return request(client).decode().split()[1]


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_from_outside_to_a_pod(fresh: Callable[..., Cluster], attach: str) -> None:
    need_router()
    cluster = fresh(attach, "--node-ip", HOST)
    with HomeRouter(cluster.lab, f"{attach}-r") as router:
        router.outside.ip(f"addr add {STRANGER}/24 dev w0")
        router.start()
        ports = [{"name": "p", "port": 80, "targetPort": 8080, "nodePort": NODE_PORT}]
        spec = {
            "type": "LoadBalancer",
            "ports": ports,
            "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": [f"{OUTSIDE}/32"],
        }
        web = cluster.web("b3", spec=spec)
        service, *slices = web.objects()
        service["metadata"]["annotations"] |= ASKS
        put(cluster.folder, "web.yaml", yaml.safe_dump_all([service, *slices]))
        cluster.agent.devices.append("home")
        cluster.agent.start()
        cluster.wait_backends(web)

        async def body(lab: EdgeLab) -> None:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.to_thread(router.ask, OUTSIDE)
            done = await lab.ensure(manifest(1))
            assert [each.ip for each in done.status.ingress] == [WAN]
            assert await lab.texts() == [f"80/TCP -> {HOST}:{NODE_PORT} kubernetes/shop/web-1/http"]
            assert await asyncio.to_thread(router.ask, OUTSIDE) == OUTSIDE  # the policy Local: not the node's address
            with pytest.raises(OSError):
                await asyncio.to_thread(router.ask, STRANGER)  # not of the source ranges

        play(router, UPNP, body)
