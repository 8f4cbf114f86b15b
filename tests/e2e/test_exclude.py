"""What is excluded passes untouched: another server of the node, at the address of the Service, answers instead of its backends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.cluster import VIP4, VIP6, Cluster, routed_lab
from tests.lab.manifests import put
from tests.lab.netns import wait_for
from tests.lab.topology import ROOT, end

CACHE = ("-m", "tests.lab.server", "cache", "--http", "80", "--dns", "5353", "--ipv4", VIP4, "--ipv6", VIP6)
BACKENDS = {"b1", "b2", "b3"}


@pytest.fixture(params=["bpf", "nftables"])
def served(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An agent, and a server of the node that has the addresses of the Service web."""
    with routed_lab(f"x{request.param[:3]}-") as lab:
        lab.node.ip(f"addr add {VIP4}/32 dev lo", f"addr add {VIP6}/128 dev lo nodad")
        cache = lab.node.popen([sys.executable, *CACHE], stdout=subprocess.PIPE, cwd=ROOT)
        lab.closing.callback(end, cache)
        assert cache.stdout is not None
        assert cache.stdout.readline() == "ready\n"
        settings = lab.folder / "agent.yaml"
        settings.write_text("")
        made = Cluster(lab, "xdp", ("--config", str(settings), "--renderer", request.param))
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


def excluded(cluster: Cluster) -> list[str]:
    found: list[str] = cluster.agent.api.status()["excluded"]
    return found


def test_by_the_setting_and_by_the_annotation(served: Cluster) -> None:
    assert excluded(served) == []
    assert set(served.http(60)) == BACKENDS
    settings = served.lab.folder / "agent.yaml"
    settings.write_text(f"exclude: ['{VIP4}/32:80/TCP']\n")
    assert served.agent.process is not None
    served.agent.process.send_signal(signal.SIGHUP)
    wait_for(lambda: excluded(served) == [f"e2e/web {VIP4}:80/TCP: --exclude {VIP4}/32:80/TCP"], "what is excluded")
    wait_for(lambda: set(served.http(10, [VIP4])) == {"cache"}, "the server of the node", 40)
    assert set(served.http(60, [VIP6])) == BACKENDS
    assert set(served.ask_dns(60)) == BACKENDS
    assert f"excluded   e2e/web {VIP4}:80/TCP" in served.agent.cli("status", check=False).stdout

    settings.write_text("")
    served.agent.process.send_signal(signal.SIGHUP)
    wait_for(lambda: excluded(served) == [], "nothing excluded")
    served.wait_backends(served.web())
    assert set(served.http(60)) == BACKENDS

    objects = served.web().objects()
    objects[0]["metadata"].setdefault("annotations", {})["lbagent.io/exclude"] = "true"
    put(served.folder, "web.yaml", yaml.safe_dump_all(objects))
    wait_for(lambda: len(excluded(served)) == 2, "both frontends excluded")
    wait_for(lambda: set(served.http(10)) == {"cache"}, "the server of the node", 40)
    assert set(served.ask_dns(60)) == BACKENDS
