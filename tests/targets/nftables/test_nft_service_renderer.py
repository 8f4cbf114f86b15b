"""nftables as a renderer of the API passes the suites that every renderer passes, in a network namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lbagent.errors import ConfigError
from lbagent.render import renderer

ROOT = Path(__file__).resolve().parents[3]
MODULE = """
from lbagent.render import ServiceRenderer, renderer
from lbagent.testing.renderer import RendererSuite, TortureSuite

class TestNftables(RendererSuite):
    def make_renderer(self) -> ServiceRenderer:
        return renderer("nftables", {"table": "suite"})

class TestNftablesTortured(TortureSuite):
    def make_renderer(self) -> ServiceRenderer:
        return renderer("nftables", {})
"""


def test_what_it_can_do_and_refuses() -> None:
    assert {"maglev", "affinity", "translates", "host_ports"} <= renderer("nftables").capabilities()
    with pytest.raises(ConfigError, match="unknown setting 'tables'"):
        renderer("nftables", {"tables": "1"})


@pytest.mark.root
def test_the_suites(tmp_path: Path) -> None:
    (tmp_path / "test_nftables.py").write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--rootdir",
        str(tmp_path),
        "-c",
        "/dev/null",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(["unshare", "--net", *command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout
