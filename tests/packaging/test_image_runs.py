"""The image is built, and the agent runs from its files with the capabilities of the DaemonSet, with a read-only root.

Its packages and wheels are downloaded once (tests/lab/image_downloads.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lab import cgroup
from tests.lab.bird_router import BirdRouter
from tests.lab.image_downloads import image_downloads
from tests.lab.netns import Namespace, wait_for

ROOT = Path(__file__).resolve().parents[2]
DAEMONSET = ROOT / "deploy" / "kubernetes" / "daemonset.yaml"
ANNOUNCE = ROOT / "deploy" / "cloud" / "agents" / "announce.yaml"
pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow, pytest.mark.timeout(900)]
SERVICE = """
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: x}, spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: web, namespace: x}, subsets: [{addresses: [{ip: 10.9.0.2}], ports: [{port: 80}]}]}
"""
BALANCED = """
apiVersion: v1
kind: Service
metadata: {name: public, namespace: x}
spec: {type: LoadBalancer, clusterIP: 10.96.0.11, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 172.31.78.1}]}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: public, namespace: x}, subsets: [{addresses: [{ip: 10.9.0.2}], ports: [{port: 80}]}]}
"""
POOLS = """
pools: [{name: public, addresses: [172.31.78.0/24], announce: [bgp]}]
bgp: {localASN: 64512, peers: [{address: 10.9.0.2, asn: 64513, bfd: {interval: 300ms}}]}
"""
NEIGHBOUR = """
protocol bgp node {
  local as 64513;
  neighbor 10.9.0.1 as 64512;
  connect delay time 1; connect retry time 2; error wait time 1, 2;
  bfd on;
  ipv4 { import all; export none; };
}
"""
# The runtime's part for the Pod: mounts, a network with a default route, a bounding set; then the commands of its user.
RUN = """
mount --bind "$R" "$R"
mount -t proc proc "$R/proc"
mount --bind /dev "$R/dev"
mount --rbind /sys "$R/sys"
mount -t bpf none "$R/sys/fs/bpf"
mount -o remount,ro,bind "$R"
for folder in run var/lib; do mount -t tmpfs none "$R/$folder"; done
mkdir "$R/run/manifests"
echo "$SERVICE" >"$R/run/manifests/web.yaml"
echo "$POOLS" >"$R/run/pools.yaml"
ip link set lo up
ip link add eth0 type veth peer name other
ip address add 10.9.0.1/24 dev eth0
ip link set eth0 up
if [ "$ROUTER" ]; then
  ip link set other netns "$ROUTER"
  ip -n "$ROUTER" address add 10.9.0.2/24 dev other
  ip -n "$ROUTER" link set other up
else
  ip link set other up
fi
ip route add default via 10.9.0.2
inside="setpriv --bounding-set -all,$CAPS --inh-caps -all,$CAPS --no-new-privs chroot $R lbagent"
$inside agent --manifests /run/manifests --device auto --node-name n --node-ip 10.9.0.1 --socket-lb --cgroup "$CGROUP" $MORE &
agent=$!
trap 'kill -KILL $agent 2>/dev/null; $inside cleanup' EXIT
for try in 1 2 3 4 5 6; do $inside status --wait 40s && break; kill -0 $agent; done
if $inside cleanup; then exit 8; fi
eval "$THEN"
kill $agent
wait $agent
$inside map dump
ip neigh show dev eth0
$inside cleanup
trap '' EXIT
"""


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file of the image."""
    if not shutil.which("apt-get"):
        pytest.skip("missing: apt-get, for Debian's Python")
    folder = tmp_path_factory.mktemp("image") / "rootfs"
    command = [sys.executable, ROOT / "deploy" / "image", "--rootfs", folder, "--from", image_downloads()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert " MB" in done.stdout
    return folder


def capabilities(file: Path) -> list[str]:
    (container,) = yaml.safe_load(file.read_text())["spec"]["template"]["spec"]["containers"]
    names = container["securityContext"]["capabilities"]["add"]
    return [name.lower() for name in (*names, "SYS_CHROOT")]  # the last file of the folder


def run_agent(
    rootfs: Path, capabilities: list[str], path: Path, more: str = "", then: str = "", *, router: str = ""
) -> tuple[str, str]:
    """Run the agent with these capabilities and arguments, and a second command; return its output and messages.

    `router` is the namespace with the other end of its link.
    """
    env = {
        "R": str(rootfs),
        "CAPS": ",".join(f"+{name}" for name in capabilities),
        "SERVICE": BALANCED if router else SERVICE,
        "ROUTER": router,
        "POOLS": POOLS,
        "CGROUP": str(path),
        "MORE": more,
        "THEN": then,
    }
    command = ["unshare", "-m", "-n", "--propagation", "private", "sh", "-ec", RUN]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_the_image_has_the_plug_in_of_kubectl(rootfs: Path) -> None:
    done = subprocess.run(
        ["chroot", rootfs, "kubectl-lbagent", "--node", "n"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: give a verb of lbagent, as `flow list`; kubectl lbagent --help\n",
    )


def test_the_agent_runs_in_the_image_with_the_capabilities_of_the_daemonset(rootfs: Path) -> None:
    with cgroup.made() as path:
        said, messages = run_agent(rootfs, capabilities(DAEMONSET), path)
    assert "device     eth0: tc_ingress" in said
    assert f"cgroup     {path}: connect4" in said
    assert "10.96.0.10:80/TCP" in said
    assert "10.9.0.2 managed" in said, "the neighbour is not kept resolved"
    assert "an agent already runs" in messages
    assert "removed map lb4_service" in said


def test_the_agent_of_the_image_speaks_bgp_with_the_capabilities_of_the_patch(rootfs: Path) -> None:
    """The agent's own BIRD, with a read-only root: it listens at BGP's port, and connects to the peer."""
    then = """
for try in $(seq 600); do grep -q ':00B3 00000000:0000 0A' /proc/net/tcp && break; sleep 0.1; done
grep ':00B3 00000000:0000 0A' /proc/net/tcp
$inside bgp peers
"""
    with cgroup.made() as path:
        said, messages = run_agent(rootfs, capabilities(ANNOUNCE), path, "--announce /run/pools.yaml", then)
    assert "bird started" in messages
    assert "bird is not installed" not in messages
    row = next(line.split() for line in said.splitlines() if line.startswith("10.9.0.2 "))
    assert row[1:3] in (["64513", "active"], ["64513", "connect"], ["64513", "idle"]), said


def test_the_router_of_the_agent_of_the_image_has_its_route(rootfs: Path, tmp_path: Path) -> None:
    """A session with a real BIRD, with BFD; it ends with the container."""
    then = """
for try in $(seq 600); do ip -n $ROUTER route show proto bird | grep -q 172.31.78.1 && break; sleep 0.1; done
ip -n $ROUTER route show proto bird
for try in $(seq 100); do $inside bgp peers | grep -q 'established *up' && break; sleep 0.1; done
$inside bgp peers
"""
    with contextlib.ExitStack() as closing, cgroup.made() as path:
        space = Namespace("router", "image-")
        closing.callback(space.delete)
        router = BirdRouter(space, tmp_path)
        closing.callback(router.close)
        router.start("10.9.0.2", NEIGHBOUR)
        said, messages = run_agent(
            rootfs, capabilities(ANNOUNCE), path, "--announce /run/pools.yaml", then, router=space.name
        )
        assert "172.31.78.1 via 10.9.0.1 dev other" in said, messages
        row = next(line.split() for line in said.splitlines() if line.startswith("10.9.0.2 "))
        assert row[1:5] == ["64513", "established", "up", "1"], said
        wait_for(lambda: not router.routes(), "the end of the route", 20)


def test_the_image_has_what_the_api_needs_and_no_compiler(rootfs: Path) -> None:
    code = "from lbagent.kube import kube_client; kube_client._load_package(); print('loaded')"
    done = subprocess.run(["chroot", rootfs, "python3", "-c", code], capture_output=True, text=True)
    assert done.stdout == "loaded\n", done.stderr
    names = {path.name for path in rootfs.rglob("*")}
    assert not [
        name for name in names if name.startswith(("libLLVM", "libclang", "libbcc")) or name in {"bcc", "vmlinux.h"}
    ]
    assert not (rootfs / "usr/include").exists()
    assert not [name for name in names if "perl" in name], "bird2's scripts alone need it"
    written = list((rootfs / "usr/lib/python3").rglob("*.pyc"))
    assert len(written) > 500, "modules are compiled: the root is not written"
