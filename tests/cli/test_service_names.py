"""The names of Services that commands show beside ids and frontends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbagent.api.client import AgentClient
from lbagent.cli.service_names import ServiceNames
from lbagent.defaults import FRONTEND_OWNERS_FILE


def row(ident: int, frontend: str, name: str, **more: Any) -> dict[str, Any]:
    namespace, _, name = name.partition("/")
    return {"id": ident, "frontend": frontend, "namespace": namespace, "name": name, **more}


def test_an_agent_that_starts_has_the_names_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has read its objects, it calls every frontend that it found in the maps `?/restored`."""
    owners = {"shop/web": ["192.0.2.1:80/TCP"], "shop/old": ["192.0.2.3:80/TCP"]}
    (tmp_path / FRONTEND_OWNERS_FILE).write_text(json.dumps({"owners": owners}))
    rows = [
        row(1, "192.0.2.1:80/TCP", "?/restored", restored=True),
        row(2, "192.0.2.2:80/TCP", "?/restored", restored=True),
        row(3, "192.0.2.3:80/TCP", "shop/new"),
    ]
    monkeypatch.setattr(AgentClient, "services", lambda *_: rows)
    names = ServiceNames.read("socket", str(tmp_path))
    assert names.is_complete
    assert [names.of(number, "") for number in (1, 2, 3, 4)] == ["shop/web", "?/restored", "shop/new", None]
    assert names.of(0, "192.0.2.1:80/TCP") == "shop/web"
