"""Local redirects as objects of a real API server: the agent of a Pod's node follows policies and the Pod's readiness."""

from __future__ import annotations

import pytest

from tests.agent.conftest import box  # noqa: F401 - a fixture
from tests.kube_api.cluster import POLICIES, Cluster
from tests.kube_api.test_agent_process import Node, node  # noqa: F401 - a fixture
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.mark.parametrize("kind", list(POLICIES))
def test_the_agent_follows_policies_and_pods(node: Node, cluster: Cluster, kind: str) -> None:  # noqa: F811
    cluster.install_policies()
    vip = str(cluster.add_service("web", selector=False)["spec"]["clusterIP"])
    cluster.put_slice("web-x", "web", "10.244.0.10")
    cluster.add_pod("near", "near", "10.244.0.20", ready=False)
    node.agent.start()
    node.until(f"ADDR={vip}:80/TCP", "10.244.0.10:8080")
    assert not node.has("LocalRedirect")
    cluster.add_policy(
        kind,
        "near",
        {
            "redirectFrontend": {"serviceMatcher": {"serviceName": "web", "namespace": "default"}},
            "redirectBackend": {
                "localEndpointSelector": {"matchLabels": {"app": "near"}},
                "toPorts": [{"port": "9090", "protocol": "TCP"}],
            },
            "skipRedirectFromBackend": True,
        },
    )
    node.until(f"ADDR={vip}:80/TCP/i")  # the row is there, with the Service's own backends
    assert not node.has("LocalRedirect")
    cluster.set_pod("near", ("10.244.0.20",), ready=True)
    node.until("LocalRedirect", "10.244.0.20:9090", "CIDR=10.244.0.20/32")
    assert node.agent.cli("verify").stdout == ""
    cluster.set_pod("near", ("10.244.0.20",), ready=False)
    wait_for(lambda: not node.has("LocalRedirect"), "the end of the redirect")
    cluster.set_pod("near", ("10.244.0.20",), ready=True)
    node.until("LocalRedirect")
    cluster.plane.ask("DELETE", f"{POLICIES[kind]}/near")
    wait_for(lambda: not node.has(f"ADDR={vip}:80/TCP/i"), "the end of the policy")
    wait_for(lambda: node.agent.cli("status", check=False).returncode == 0, "a good status", 40)
