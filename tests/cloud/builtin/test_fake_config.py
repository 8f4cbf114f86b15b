"""The configuration of provider fake: its meaning, and one message for an error."""

from __future__ import annotations

import pytest

from lbagent.cloud.builtin.fake_config import Failure, read_fake_config
from lbagent.cloud.provider import Ingress, IngressPort
from lbagent.errors import ConfigError


def test_nothing_is_the_default() -> None:
    for text in ("", "# nothing\n", "{}"):
        assert read_fake_config(text).status == (Ingress(ip="198.51.100.1"),)


def test_all_of_it() -> None:
    found = read_fake_config(
        "record: /x\nstatus: [{ip: 192.0.2.1, ipMode: Proxy, ports: [{port: 80, protocol: TCP, error: E}]}, {hostname: a.b}]\n"
        "fail: [{op: ensure, service: a/b, times: 2, error: no}, {op: update, retryAfterSeconds: 4.5},"
        " {op: ensure, implementedElsewhere: true}]\ndelaySeconds: {delete: 0.5}\n"
    )
    assert found.record == "/x"
    assert found.status == (
        Ingress("192.0.2.1", "", "Proxy", (IngressPort(80, "TCP", "E"),)),
        Ingress("", "a.b"),
    )
    assert found.fail == (
        Failure("ensure", "a/b", 2, "no"),
        Failure("update", retry_after_s=4.5),
        Failure("ensure", implemented_elsewhere=True),
    )
    assert found.delay_s == {"delete": 0.5}
    assert read_fake_config("status: []").status == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("record: {", "--config:1: not YAML"),
        ("recrod: x", "--config:1: recrod: unknown key; did you mean 'record'?"),
        ("\nstatus: [{}]", "--config:2: status[0]: an entry has either ip or hostname"),
        ("status: [{ip: x}]", "--config:1: status[0].ip: 'x' is not"),
        ("status: [{ip: 192.0.2.1, ipMode: vip}]", "--config:1: status[0].ipMode: unknown value 'vip'"),
        ("fail: [{op: make, error: e}]", "--config:1: fail[0].op: unknown value 'make'"),
        ("fail: [{op: ensure}]", "--config:1: fail[0]: it has none of"),
        ("fail: [{op: ensure, error: e, times: 0}]", "--config:1: fail[0].times: 0 is not at least 1"),
        ("fail: [{op: ensure, retryAfterSeconds: -1}]", "--config:1: fail[0].retryAfterSeconds: -1 is not in"),
        ("delaySeconds: {get: 1}", "--config:1: delaySeconds.get: unknown value 'get'"),
        ("delaySeconds: {ensure: -1}", "--config:1: delaySeconds.ensure: -1 is not in"),
        ("[]", "--config:1: a mapping is wanted, not a list"),
        ("{}\n---\n{}", "--config: one document is wanted, not 2"),
    ],
)
def test_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as found:
        read_fake_config(text)
    assert str(found.value).startswith(message), found.value
