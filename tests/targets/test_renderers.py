"""Which data planes there are, and what --renderer may name."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.config import Config
from lbagent.errors import ConfigError, Unsupported
from lbagent.kernel import features
from lbagent.model.address import L3n4Addr
from lbagent.model.service import SVC
from lbagent.model.state import State
from lbagent.render.renderer_names import SHIPPED, renderer_rows
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf import bpf_renderer
from lbagent.targets.bpf.bpf_plane import BpfDataPlane
from lbagent.targets.nftables import nft_plane, nft_renderer, nft_table
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


def test_auto_takes_bpf_where_it_can(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(bpf_renderer, "unavailable", lambda: "")
    (found,) = chosen(Config(renderer=("auto",)))
    assert found.name == "bpf"
    monkeypatch.setattr(bpf_renderer, "unavailable", lambda: "no BPF here")
    monkeypatch.setattr(nft_renderer, "unavailable", lambda: "")
    planes = data_planes(Config(renderer=("record=/dev/null", "auto")))
    assert [plane.name for plane in planes] == ["nftables", "record"]
    (record,) = caplog.records
    assert (record.levelname, record.reason) == ("WARNING", "no BPF here")  # type: ignore[attr-defined]
    monkeypatch.setattr(nft_renderer, "unavailable", lambda: "no rights")
    with pytest.raises(
        Unsupported, match="--renderer auto is not available: bpf: no BPF here; nftables: no rights"
    ) as gone:
        chosen(Config(renderer=("auto",)))
    assert gone.value.exit_code == 77


async def test_bpf_of_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Desired] = []

    async def reconcile(_plane: BpfDataPlane, desired: Desired) -> None:
        given.append(desired)

    monkeypatch.setattr(BpfDataPlane, "reconcile", reconcile)
    words = ("bpf=family=ipv6", "nftables=family=ipv4")
    bpf, nftables = data_planes(Config(renderer=words))
    assert (bpf.name, nftables.name) == ("bpf", "nftables")
    four, six = SVC(L3n4Addr("10.0.0.1", 80)), SVC(L3n4Addr("2001:db8::1", 80))
    state = State(7, (four, six))
    for _ in range(2):
        await bpf.reconcile(Desired(state))
    assert [(each.state.generation, each.state.services) for each in given] == [(7, (six,))] * 2
    assert given[0].state is given[1].state


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


@pytest.mark.parametrize(
    ("words", "names"),
    [((), ["nftables"]), (("auto",), ["nftables"]), (("nftables=table=egress", "none"), ["nftables", "none"])],
)
def test_nftables_does_egress_snat(words: tuple[str, ...], names: list[str]) -> None:
    given = {"renderer": words} if words else {}
    config = Config(services=False, egress_snat="on", **given)  # type: ignore[arg-type]
    assert [each.name for each in chosen(config)] == names


def test_others_cannot_do_egress_snat() -> None:
    with pytest.raises(ConfigError, match="--egress-snat needs --renderer nftables: none cannot do it"):
        chosen(Config(services=False, egress_snat="on", renderer=("none",)))
