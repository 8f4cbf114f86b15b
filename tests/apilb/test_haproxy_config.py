"""haproxy.cfg: the seed's directives by default, those of lbagent's keys if given; HAProxy itself accepts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lbagent.apilb.haproxy_config import container_config, haproxy_config
from lbagent.apilb.instance import Instance
from tests.apilb.pool_texts import parse_pool_text
from tests.lab.debian_packages import HAPROXY, unpacked
from tests.lab.https_server import make_certificate

SEEDS = [
    "defaults", "mode tcp", "timeout connect 5s", "timeout client 30s", "timeout client-fin 30s", "timeout server 30s",
    "timeout tunnel 21d", "frontend kube-apiserver", "bind 0.0.0.0:6443", "default_backend kube-apiserver",
    "backend kube-apiserver", "option httpchk GET /healthz HTTP/1.1", "http-check send hdr Host kube-apiserver",
    "server 0 10.0.0.2:6443 verify none check check-ssl", "server 1 b.example:6443 verify none check check-ssl",
]  # fmt: skip
SERVERS = "servers: ['10.0.0.2:6443', 'b.example:6443']\n"


def instance(text: str = "", servers: str = SERVERS, bind: str = "0.0.0.0:6443") -> Instance:
    (found,) = parse_pool_text(f"{text}\n{servers}bindAddress: '{bind}'\napiLoadBalancers: [{{}}]", "p").instances
    return found


def directives(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_by_default_the_directives_are_the_seeds() -> None:
    text = haproxy_config(instance())
    assert directives(text) == SEEDS
    assert text.strip() + "\n" == text


def test_our_keys_add_theirs() -> None:
    check = "healthCheck: {path: /readyz, interval: 250ms, timeout: 1s, fall: 2, rise: 4, caFile: /etc/haproxy/pki/ca.pem, host: a.b}"
    given = instance(f"onMarkedDown: reset\n{check}")
    options = "inter 250ms fall 2 rise 4 on-marked-down shutdown-sessions"
    assert directives(haproxy_config(given))[-5:] == [
        "option httpchk GET /readyz HTTP/1.1",
        "http-check send hdr Host a.b",
        "timeout check 1s",
        f"server 0 10.0.0.2:6443 verify required ca-file /etc/haproxy/pki/ca.pem check check-ssl {options}",
        f"server 1 b.example:6443 verify required ca-file /etc/haproxy/pki/ca.pem check check-ssl {options}",
    ]
    assert "ca-file /usr/local/etc/haproxy/pki/ca.pem check" in container_config(given)
    with pytest.raises(ValueError, match="is not in /etc/haproxy, the only folder"):
        container_config(instance("healthCheck: {caFile: /etc/kubernetes/ca.pem}"))
    assert container_config(instance()) == haproxy_config(instance())


def test_servers_without_a_port_have_that_of_the_bind() -> None:
    found = directives(
        haproxy_config(instance(servers="servers: [10.0.0.2, a, 'fd00::1', '[fd00::2]', '[fd00::3]:1']\n"))
    )
    assert [line.split()[2] for line in found if line.startswith("server")] == [
        "10.0.0.2:6443", "a:6443", "[fd00::1]:6443", "[fd00::2]:6443", "[fd00::3]:1",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "bind", ["0.0.0.0:6443", ":6443", "*:6443", "127.0.0.1:7443", "[::]:6443", "[::1]:7443", "localhost:1"]
)
@pytest.mark.parametrize(
    "more",
    ["", "onMarkedDown: reset", "healthCheck: {}", "healthCheck: {caFile: CA, interval: 10ms, path: '/a?b=%20&c'}"],
)
def test_haproxy_accepts_it(bind: str, more: str, tmp_path: Path) -> None:
    authorities, _ = make_certificate(tmp_path)
    config = tmp_path / "haproxy.cfg"
    given = instance(
        more.replace("CA", str(authorities)), bind=bind, servers="servers: [10.0.0.2, '[fd00::1]:1', localhost]\n"
    )
    config.write_text(haproxy_config(given))
    packages = unpacked("haproxy", HAPROXY)
    done = subprocess.run(
        [packages.program("haproxy"), "-c", "-f", config], env=packages.environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "Configuration file is valid\n"), done.stderr
