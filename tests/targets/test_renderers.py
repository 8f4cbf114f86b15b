"""Which data planes there are, and what --renderer may name."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.config import Config
from lbagent.errors import ConfigError, Unsupported
from lbagent.kernel import features
from lbagent.render.renderer_names import SHIPPED, renderer_rows
from lbagent.targets.nftables import nft_plane, nft_table
from lbagent.targets.none.none_renderer import NonePlane
from lbagent.targets.renderers import chosen, data_planes


def test_the_default_is_bpf() -> None:
    assert [word.name for word in chosen(Config())] == ["bpf"]
    assert [word.name for word in chosen(Config(renderer=()))] == ["bpf"]


def test_of_several_bpf_serves() -> None:
    found = chosen(Config(renderer=("record=/tmp/a=b,c", "none", "bpf")))
    assert [(each.name, each.settings) for each in found] == [
        ("bpf", {}),
        ("record", {"file": "/tmp/a=b,c"}),
        ("none", {}),
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("iptables",), "unknown renderer 'iptables'; there are bpf, nftables, record, none"),
        (("",), "unknown renderer ''"),
        (("none", "none"), "none is given twice"),
        (("none=1",), "none has no settings"),
        (("bpf=colour=red",), "bpf has no settings"),
        (("bpf=family=ipv5",), "family is 'ipv5'; it can be ipv4 or ipv6"),
        (("nftables=table",), "expected KEY=VALUE,... with each key once, got 'table'"),
        (("nftables=table=a,table=b",), "expected KEY=VALUE,... with each key once, got 'table=b'"),
        (("bpf", "nftables"), "bpf and nftables would both translate IPv4"),
        (("nftables=family=ipv6", "bpf"), "nftables and bpf would both translate IPv6"),
        (("auto=family=ipv4",), "auto has no settings"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as found:
        chosen(Config(renderer=words))
    assert found.value.exit_code == 2


def test_record_needs_a_file() -> None:
    with pytest.raises(ConfigError, match="record=FILE"):
        data_planes(Config(renderer=("record",)))


def test_one_that_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nft_plane, "unavailable_reason", lambda: "no rights")
    (plane,) = data_planes(Config(renderer=("nftables",)))
    with pytest.raises(Unsupported, match="--renderer nftables is not available: no rights") as found:
        asyncio.run(plane.open(lambda: None))
    assert found.value.exit_code == 77


def test_the_planes_are_made_in_their_order() -> None:
    (plane,) = data_planes(Config(renderer=("none",)))
    assert isinstance(plane, NonePlane)
    assert plane.features == frozenset()


def test_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "can_load", lambda: 1)
    monkeypatch.setattr(nft_table, "unavailable_reason", lambda: "no rights")
    found = {row.name: row for row in renderer_rows()}
    assert list(found) == list(SHIPPED) == ["bpf", "nftables", "record", "none"]
    assert [found[name].available for name in found] == [False, False, True, True]
    assert "may not load BPF programs: Operation not permitted" in found["bpf"].reason
    assert found["nftables"].reason
    assert {row.from_ for row in found.values()} == {"lbagent"}
    assert "snat" in found["bpf"].capabilities
    assert found["bpf"].capabilities == sorted(found["bpf"].capabilities)
