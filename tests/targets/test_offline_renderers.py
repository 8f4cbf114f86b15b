"""What commands without an agent find about renderers from other wheels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.config import Config
from lbagent.errors import ConfigError
from lbagent.model.state import State
from lbagent.targets.offline_planes import offline_data_planes, text_of
from tests.render.plug_in_folder import GOOD, forget_modules, install


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget_modules(tmp_path)


def test_a_plug_in_that_can_be_used(folder: Path) -> None:
    install(folder, "lbagent-good", "good", GOOD)
    (found,) = offline_data_planes(Config(renderer=("good=colour=red",)))
    assert (found.name, found.checks, found.unavailable) == ("good", None, "")
    with pytest.raises(ConfigError, match="--renderer good: name one of those that have a text: nftables"):
        text_of(Config(renderer=("good",)), State())


def test_one_that_cannot(folder: Path) -> None:
    install(folder, "lbagent-bad", "bad", "raise RuntimeError('no')")
    record, bad = offline_data_planes(Config(renderer=("record=/dev/null", "bad")))
    assert record.unavailable == ""
    text = "--renderer bad is not available: lbagent_bad:make of lbagent-bad cannot be loaded: RuntimeError: no"
    assert bad.unavailable == text


def test_no_forms_but_those_of_the_data_plane() -> None:
    with pytest.raises(ConfigError, match="-o yaml: nftables has the forms nft, json"):
        text_of(Config(renderer=("nftables",)), State(), "yaml")
    assert text_of(Config(renderer=("nftables",)), State()).text.startswith("table inet lbagent\n")
    with pytest.raises(ConfigError, match="--renderer nftables record=/dev/null: name one"):
        text_of(Config(renderer=("nftables", "record=/dev/null")), State())
