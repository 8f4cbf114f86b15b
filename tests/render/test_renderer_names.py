"""Renderers by name: lbagent's own, and plug-ins, also broken ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.errors import ConfigError, NotFound
from lbagent.kernel import features
from lbagent.render import ServiceRenderer, renderer
from lbagent.render.renderer_names import SHIPPED, RendererError, RendererRow, names, renderer_rows
from tests.render.plug_in_folder import GOOD, forget_modules, install


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget_modules(tmp_path)


def row(name: str) -> RendererRow:
    return next(each for each in renderer_rows() if each.name == name and each.from_ != "lbagent")


def test_a_plug_in_is_found_and_made(folder: Path) -> None:
    install(folder, "lbagent-good", "good", GOOD)
    made = renderer("good", {"colour": "red"})
    assert isinstance(made, ServiceRenderer)
    assert row("good") == RendererRow("good", "lbagent-good", capabilities=["colour", "weights"])
    assert names() == [*SHIPPED, "good"]
    with pytest.raises(ConfigError, match=r"--renderer good: unknown settings \['x'\]"):
        renderer("good", {"x": "1"})


def test_an_unknown_name(folder: Path) -> None:
    install(folder, "lbagent-good", "good", GOOD)
    with pytest.raises(NotFound, match="unknown renderer 'iptables'; there are bpf, nftables, record, none, good"):
        renderer("iptables")


@pytest.mark.parametrize("name", SHIPPED)
def test_each_of_lbagents_own_takes_calls(name: str, tmp_path: Path) -> None:
    settings = {"file": str(tmp_path / "calls")} if name == "record" else {}
    assert isinstance(renderer(name, settings), ServiceRenderer)


def test_record_is_one_of_them(tmp_path: Path) -> None:
    assert isinstance(renderer("record", {"file": str(tmp_path / "calls")}), ServiceRenderer)
    with pytest.raises(ConfigError, match="record=FILE"):
        renderer("record")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_like_this", "cannot be loaded: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("raise SystemError('no')", "bad:make of lbagent-bad cannot be loaded: SystemError: no"),
        ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
        ("make = 3", "is a int, no factory"),
        (GOOD + "\nmake.api_version = 2", "needs version 2 of the renderer API; this lbagent has 1"),
        ("def make(settings): return object()", "is a object without add_service, "),
        ("def make(settings): raise KeyError('x')", "cannot be made: KeyError: 'x'"),
        (GOOD + "\nGood.capabilities = lambda self: 'all'", "capabilities returned 'all', no frozenset of words"),
        (GOOD + "\ndef capabilities(self): return 1 / 0\nGood.capabilities = capabilities", "capabilities raised Zero"),
    ],
)
def test_a_broken_plug_in_is_named_with_the_reason(folder: Path, source: str, reason: str) -> None:
    install(folder, "lbagent-bad", "bad", source)
    install(folder, "lbagent-good", "good", GOOD)
    found = row("bad")
    assert not found.available
    assert reason in found.reason
    assert row("good").available
    with pytest.raises(RendererError):
        renderer("bad")


def test_one_that_needs_settings_is_available(folder: Path) -> None:
    install(folder, "lbagent-picky", "picky", GOOD + "\ndef make(settings): raise ValueError('name a colour')")
    assert row("picky") == RendererRow("picky", "lbagent-picky", reason="--renderer picky: name a colour")


def test_a_name_that_two_distributions_have(folder: Path) -> None:
    install(folder, "lbagent-good", "good", GOOD)
    install(folder, "lbagent-other", "good", GOOD)
    found = [each for each in renderer_rows() if each.name == "good"]
    assert [(each.from_, each.available) for each in found] == [("lbagent-good", False), ("lbagent-other", False)]
    both = "installed twice: lbagent_good:make of lbagent-good, lbagent_other:make of lbagent-other; uninstall one"
    assert {each.reason for each in found} == {both}
    with pytest.raises(RendererError, match="installed twice"):
        renderer("good")


def test_a_plug_in_cannot_take_a_name_of_lbagent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "can_load", lambda: 0)
    install(folder, "lbagent-mine", "record", "raise SystemExit")
    assert row("record").reason == "lbagent itself has a renderer record; it is used"
    assert next(renderer_rows()).name == "bpf"
    assert names().count("record") == 1
