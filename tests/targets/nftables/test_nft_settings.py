"""The settings of `--renderer nftables=...`."""

from __future__ import annotations

import pytest

from lbagent.config import Config
from lbagent.errors import ConfigError
from lbagent.model.family import Family
from lbagent.targets.nftables.nft_settings import other_ports, parsed, table_settings


def test_defaults_and_settings() -> None:
    assert table_settings({}, Config()).table == "lbagent"
    assert table_settings({}, Config()).priority == -5
    found = table_settings(
        parsed("table=lb2,priority=+7"), Config(pod_device=("pod*",), reject_rate=3, masquerade_all=True)
    )
    assert (found.table, found.priority, found.pod_devices, found.reject_rate) == ("lb2", 7, ("pod*",), 3)
    assert found.masquerade_all
    assert table_settings(parsed("family=ipv6"), Config()).families == {Family.IPV6}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("table", "is not KEY=VALUE"),
        ("table=a,table=b", "table is given twice"),
        ("chain=x", "unknown setting 'chain'; there are family, priority, table"),
        ("table=a b", "expected letters"),
        ("table=", "expected letters"),
        ("family=ipv5", "expected ipv4 or ipv6"),
        ("priority=high", "expected a number from -50 to 50"),
        ("priority=51", "expected a number from -50 to 50"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as found:
        table_settings(parsed(text), Config())
    assert found.value.exit_code == 2


@pytest.mark.parametrize(
    ("snat", "wanted"),
    [
        ((1024, 29999), (30000, 65535)),
        ((256, 1023), (1024, 65535)),
        ((40000, 65535), (1024, 39999)),
        ((20000, 30000), (30001, 65535)),
    ],
)
def test_source_ports_beside_a_range(snat: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert other_ports(*snat) == wanted
