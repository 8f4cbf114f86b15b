"""Health checks that this node cannot do: a message with the object and the annotation, and what happens instead."""

from __future__ import annotations

import pytest

from lbagent.agent.layer_settings import resolve_options
from lbagent.config import Config
from lbagent.sources.folder.resolve_path import resolve_texts

SERVICE = """
apiVersion: v1
kind: Service
metadata: {{name: web, annotations: {{lbagent.io/health-check: "{check}"}}}}
spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{{addresses: [10.244.1.1]}}]
"""


def messages(check: str, **settings: object) -> list[str]:
    options = resolve_options(Config(node_name="n", **settings))  # type: ignore[arg-type]
    found = resolve_texts({"web.yaml": SERVICE.format(check=check)}, options).messages
    return [str(each) for each in found if "health-check" in each.field]


@pytest.mark.parametrize("check", ["tcp via=vip", "passive", "tcp"])
def test_bpf_does_them(check: str) -> None:
    for renderer in ("bpf", "auto"):
        assert messages(check, renderer=(renderer,)) == []
    assert messages(check) == []


@pytest.mark.parametrize(
    ("check", "settings", "words"),
    [
        ("tcp via=vip", {"renderer": ("nftables",)}, ("via=vip", "bpf", "directly")),
        ("tcp via=vip", {"socket_lb": True}, ("via=vip", "--socket-lb", "directly")),
        ("passive", {"renderer": ("nftables",)}, ("passive", "bpf", "not checked")),
        ("passive", {"handshake_sample": 0}, ("passive", "--handshake-sample 0", "not checked")),
    ],
)
def test_what_is_not_possible_is_said(check: str, settings: dict[str, object], words: tuple[str, ...]) -> None:
    (text,) = messages(check, **settings)
    assert "Service default/web" in text
    assert "lbagent.io/health-check" in text
    for word in words:
        assert word in text


def test_a_check_that_is_possible_has_no_message_there() -> None:
    assert messages("tcp", renderer=("nftables",)) == []
