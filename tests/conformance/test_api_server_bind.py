"""Files of the check with kubelet and kubectl: the pool file, kubeconfigs, the arguments of a restarted program."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.apilb.pool_texts import parse_pool_text
from tests.conformance.api_server_bind import ALL, LOCAL, pool, through
from tests.conformance.node_program import replaced
from tests.lab.netns import LabError


def test_the_pool_has_a_bind_of_each_kind(tmp_path: Path) -> None:
    instances = parse_pool_text(pool("172.31.77.11:6443", tmp_path), str(tmp_path / "config.yaml")).instances
    assert [(each.bind_address, each.mode, each.servers) for each in instances] == [
        (bind, "native", ("172.31.77.11:6443",)) for bind in (LOCAL, ALL)
    ]
    assert [each.host_config_path for each in instances] == [
        str(tmp_path / f"{name}.yaml") for name in ("local", "all")
    ]


def test_a_kubeconfig_has_another_address_and_nothing_else_changed() -> None:
    cluster = {"server": "https://172.31.77.11:6443", "certificate-authority-data": "eA=="}
    document = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": "t"}}]}
    changed = yaml.safe_load(through(yaml.safe_dump(document), LOCAL))
    assert changed["clusters"][0]["cluster"].pop("server") == f"https://{LOCAL}"
    assert changed["clusters"][0]["cluster"].pop("tls-server-name") == "kubernetes"
    assert changed["clusters"][0]["cluster"] == {"certificate-authority-data": "eA=="}
    assert changed["users"] == document["users"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["kubelet", "--kubeconfig", "a", "--v", "2"], ["kubelet", "--kubeconfig", "b", "--v", "2"]),
        (["kubelet", "--kubeconfig=a"], ["kubelet", "--kubeconfig=b"]),
    ],
)
def test_an_argument_is_replaced(argv: list[str], expected: list[str]) -> None:
    assert replaced(argv, "--kubeconfig", "b") == expected
    assert argv != expected


def test_a_flag_that_is_not_there_is_named() -> None:
    with pytest.raises(LabError, match="kubelet was started without --kubeconfig"):
        replaced(["kubelet", "--kubeconfig"], "--kubeconfig", "b")
