"""The oracle's folders are what they seem to be: nothing in them is refused, and each frontend that is asked is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings

from lbagent.agent.layer_settings import resolve_options
from lbagent.config import Config
from lbagent.resolve import Options
from lbagent.sources.folder.resolve_path import resolve_path
from tests.oracle.asker import SILENT, Outcome
from tests.oracle.folders import BACKENDS, HOST, NODE_OF, Folder, histories
from tests.oracle.judge import is_one_distribution

ANSWERED = [Outcome("answered", f"b{number}:8080") for number in range(3)]


@given(history=histories())
@settings(max_examples=60)
def test_nothing_of_a_folder_is_refused(tmp_path_factory: pytest.TempPathFactory, history: Sequence[Folder]) -> None:
    path: Path = tmp_path_factory.mktemp("folders") / "all.yaml"
    for folder in history:
        path.write_text(folder.text(2000))
        found = resolve_path(str(path.parent), _options())
        assert [str(message) for message in found.messages if not message.warning] == []
        served = {(svc.frontend.ip, svc.frontend.port) for svc in found.state.services}
        asked = {(each.address, each.port) for service in folder.services for each in service.frontends()}
        assert asked <= served


def _options() -> Options:
    return resolve_options(Config(node_name=NODE_OF[HOST], node_ip=BACKENDS[HOST]))


def test_samples_of_one_distribution() -> None:
    assert is_one_distribution(
        Counter(dict(zip(ANSWERED, (100, 120, 140), strict=True))),
        Counter(dict(zip(ANSWERED, (120, 120, 120), strict=True))),
    )
    assert not is_one_distribution(
        Counter(dict(zip(ANSWERED, (60, 150, 150), strict=True))),
        Counter(dict(zip(ANSWERED, (150, 60, 150), strict=True))),
    )
    assert not is_one_distribution(Counter({ANSWERED[0]: 100, SILENT: 0}), Counter({ANSWERED[0]: 50, SILENT: 50}))
