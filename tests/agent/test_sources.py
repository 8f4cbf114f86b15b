"""The table of sources: which are built, in which order, and that each of them keeps the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbagent.agent import layer_settings
from lbagent.agent.sources import build_sources, source_names
from lbagent.config import Config
from lbagent.errors import ConfigError


def test_the_operator_comes_first_then_the_others_as_configured(tmp_path: Path) -> None:
    config = Config(manifests=str(tmp_path), synthetic="2:1", state_dir=str(tmp_path))
    operator, sources = build_sources(config)
    assert sources[0] is operator
    assert tuple(source.name for source in sources) == source_names(config) == ("operator", "folder", "synthetic")
    assert layer_settings.resolve_options(config).sources == source_names(config)
    for source in sources:
        source.resume()
        origins = [
            each.origin for kind in ("Service", "EndpointSlice") for each in source.snapshot().of_kind(kind).values()
        ]
        assert {origin.source for origin in origins} <= {source.name}


def test_one_source_of_services_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no source of services"):
        build_sources(Config(state_dir=str(tmp_path)))
