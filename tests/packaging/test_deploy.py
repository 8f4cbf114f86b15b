"""The wheel's files besides Python: the example configuration and the systemd unit."""

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
        "apilb",
        "kubeconfig",
        "liveness-key-file",
        "device",
        "pod-device",
        "node-name",
        "node-ip",
        "snat-address",
        "metrics-address",
        "cgroup",
        "nodeport-addresses",
        "external-ip-cidr",
    }  # have no useful default to show
    derived = {"flow6-table-size": 1 << 19}  # 0 means half of IPv4's
    for key, text in re.findall(r"^#([a-z0-9-]+): (.*)$", EXAMPLE.read_text(), re.MULTILINE):
        if key not in examples:
            value = derived.get(key, defaults[key])
            shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value)
            assert text == (shown.lower() if isinstance(value, bool) else shown), key


@pytest.mark.parametrize("key", ["manifests", "device", "pod-device", "attach", "snat-ports", "flow-table-size"])
def test_keys_an_operator_decides_about_are_in_the_example(key):
    assert key in _KEY.findall(EXAMPLE.read_text())


def test_the_unit_starts_the_agent_with_the_file_the_example_is_copied_to():
    unit = (DEPLOY / "lbagent.service").read_text()
    start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1]
    assert start.endswith("lbagent agent --config /etc/lbagent/lbagent.yaml")
    assert "/etc/lbagent/lbagent.yaml" in EXAMPLE.read_text()


APILB_UNIT = DEPLOY / "lbagent-apilb.service"


def words_of(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


def test_the_unit_of_native_pools_needs_no_api_server_and_comes_before_kubelet():
    (start,) = words_of(APILB_UNIT, "ExecStart")
    arguments = start.split()[2:]
    flags = {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(*[iter(arguments)] * 2, strict=True)
    }
    loaded = config.load(flags, {})
    assert (loaded.apilb, loaded.has_manifests, loaded.has_socket_programs) == ("/etc/lbagent/apilb.d", False, True)
    assert words_of(APILB_UNIT, "Before") == ["kubelet.service"]
    assert "network-online.target" not in APILB_UNIT.read_text()


def test_two_units_share_no_file():
    """A host may run both: a cluster's agent runs as a DaemonSet, or by its own unit."""
    (start,) = words_of(APILB_UNIT, "ExecStart")
    own = {word for word in start.split()[2:] if word.startswith("/") and "apilb.d" not in word}
    settings = config.load({}, {})
    assert len(own) == 3
    assert own.isdisjoint({settings.bpffs, settings.socket, settings.state_dir})
    for key in ("RuntimeDirectory", "StateDirectory"):
        assert words_of(APILB_UNIT, key) != words_of(DEPLOY / "lbagent.service", key)
    (folder,) = words_of(APILB_UNIT, "ConfigurationDirectory")
    assert folder == "lbagent/apilb.d"


def test_both_units_are_as_strict():
    """It has no right that the other unit lacks; it announces nothing, so it has fewer."""
    first, second = (
        {line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")}
        for unit in (DEPLOY / "lbagent.service", APILB_UNIT)
    )
    strict = {line for line in first if line.startswith(("Restrict", "NoNew", "Lock", "SystemCall", "UMask"))}
    assert {line for line in strict - second if not line.startswith("RestrictAddressFamilies")} == set()
    rights = [
        set(words_of(unit, "CapabilityBoundingSet")[0].split()) for unit in (DEPLOY / "lbagent.service", APILB_UNIT)
    ]
    assert rights[1] < rights[0]
