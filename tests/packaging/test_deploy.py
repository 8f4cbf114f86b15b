"""What the wheel brings besides Python: the example configuration and the systemd unit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lbagent import config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
EXAMPLE = DEPLOY / "lbagent.yaml"
_KEY = re.compile(r"^#?([a-z0-9-]+):", re.MULTILINE)


def uncommented(folder: Path) -> Path:
    path = folder / "all.yaml"
    path.write_text(re.sub(r"^#(?=[a-z0-9-]+:)", "", EXAMPLE.read_text(), flags=re.MULTILINE))
    return path


def test_config_check_accepts_the_example(tmp_path):
    for path in (EXAMPLE, uncommented(tmp_path)):
        done = subprocess.run(
            [sys.executable, "-m", "lbagent", "config", "check", "--config", path], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_commented_values_are_the_defaults():
    defaults = {option.key: option.default for option in config.options()}
    examples = {
        "announce",
        "kubeconfig",
        "device",
        "pod-device",
        "node-name",
        "node-ip",
        "snat-address",
        "metrics-address",
        "cgroup",
        "nodeport-addresses",
    }  # have no useful default to show
    derived = {"flow6-table-size": 1 << 19}  # 0 stands for half of IPv4's
    for key, text in re.findall(r"^#([a-z0-9-]+): (.*)$", EXAMPLE.read_text(), re.MULTILINE):
        if key not in examples:
            value = derived.get(key, defaults[key])
            assert text == (str(value).lower() if isinstance(value, bool) else str(value)), key


@pytest.mark.parametrize("key", ["manifests", "device", "pod-device", "attach", "snat-ports", "flow-table-size"])
def test_keys_an_operator_decides_about_are_in_the_example(key):
    assert key in _KEY.findall(EXAMPLE.read_text())


def test_the_unit_starts_the_agent_with_the_file_the_example_is_copied_to():
    unit = (DEPLOY / "lbagent.service").read_text()
    start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1]
    assert start.endswith("lbagent agent --config /etc/lbagent/lbagent.yaml")
    assert "/etc/lbagent/lbagent.yaml" in EXAMPLE.read_text()
