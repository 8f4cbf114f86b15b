"""Kubeconfigs and service accounts that cannot be used: one sentence that names the file and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lbagent.errors import ConfigError
from lbagent.sources.kube import kube_settings
from lbagent.sources.kube.kube_settings import KubeSettings
from tests.sources.kube.cluster import kubeconfig


def changed(folder: Path, **parts: Any) -> str:
    path = Path(kubeconfig(folder, 1))
    path.write_text(
        yaml.safe_dump(
            {
                key.replace("_", "-"): value
                for key, value in {
                    **yaml.safe_load(path.read_text()),
                    **{k.replace("_", "-"): v for k, v in parts.items()},
                }.items()
                if value != "gone"
            }
        )
    )
    return str(path)


def check(path: str) -> None:
    KubeSettings(kubeconfig=path, node_name="n").check()


def test_a_good_one(tmp_path) -> None:
    check(kubeconfig(tmp_path, 6443))
    check(changed(tmp_path, users="gone", contexts=[{"name": "here", "context": {"cluster": "c"}}]))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"current_context": "gone"}, "current-context is missing"),
        ({"current_context": ""}, "current-context is missing"),
        ({"current_context": "there"}, "current-context 'there' is not among its contexts (here)"),
        ({"contexts": "gone"}, "not among its contexts (none)"),
        ({"clusters": []}, "names the cluster 'c', which is not in the file"),
        ({"users": []}, "names the user 'u', which is not in the file"),
        ({"clusters": [{"name": "c", "cluster": {"server": "10.0.0.1:6443"}}]}, "is not a URL"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "server"),
        ({"contexts": 5}, "contexts"),
    ],
)
def test_what_is_missing_is_named(tmp_path, parts, words) -> None:
    path = changed(tmp_path, **parts)
    with pytest.raises(ConfigError) as caught:
        check(path)
    assert words in str(caught.value)
    assert f"--kubeconfig {path}" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("a: [\n", "not YAML"),
        ("- a\n", "expected a mapping"),
        ("", "expected"),
        (b"\xff\xfe\x00", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, text, words) -> None:
    path = tmp_path / "k"
    if isinstance(text, bytes):
        path.write_bytes(text)
    elif text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        check(str(path))
    assert str(path) in str(caught.value)
    assert isinstance(text, str) or words in str(caught.value)


def test_in_cluster(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(kube_settings, "TOKEN_FOLDER", str(tmp_path))
    for name in kube_settings.SERVER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_HOST is not set; outside a Pod use --kubeconfig"):
        check("")
    for name in kube_settings.SERVER_VARIABLES:
        monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match="token: No such file"):
        check("")
    (tmp_path / "token").write_text("")
    with pytest.raises(ConfigError, match="token is empty"):
        check("")
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("c")
    check("")
