"""Kubeconfigs and service accounts that cannot be used: one message with the file and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lbagent.errors import ConfigError
from lbagent.kube import kube_settings
from lbagent.kube.kube_settings import KubeSettings
from tests.kube.cluster import kubeconfig


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


FILES = [
    ("certificate-authority", "cluster 'c'", "clusters", "cluster"),
    ("client-certificate", "user 'u'", "users", "user"),
    ("client-key", "user 'u'", "users", "user"),
    ("tokenFile", "user 'u'", "users", "user"),
]


def with_fields(folder: Path, part: str, kind: str, **fields: Any) -> str:
    """Return a kubeconfig for a server with TLS whose cluster or user has further fields."""
    given = {"clusters": {"server": "https://127.0.0.1:1"}, "users": {}}
    given[part] = {**given[part], **fields}
    return changed(
        folder,
        clusters=[{"name": "c", "cluster": given["clusters"]}],
        users=[{"name": "u", "user": given["users"]}],
    )


@pytest.mark.parametrize(("field", "owner", "part", "kind"), FILES)
@pytest.mark.parametrize(("content", "words"), [(None, "No such file or directory"), (b"", "the file is empty")])
def test_a_file_that_it_names_and_that_cannot_be_used(
    tmp_path: Path, field: str, owner: str, part: str, kind: str, content: bytes | None, words: str
) -> None:
    file = tmp_path / "named"
    if content is not None:
        file.write_bytes(content)
    for name in ("named", str(file)):  # relative to the kubeconfig, or absolute
        path = with_fields(tmp_path, part, kind, **{field: name})
        with pytest.raises(ConfigError) as caught:
            check(path)
        assert str(caught.value) == f"--kubeconfig {path}: {field} of {owner}: {file}: {words}; nothing was loaded"
        assert caught.value.exit_code == 2
    file.write_text("good")
    check(path)


@pytest.mark.parametrize(("field", "_owner", "part", "kind"), FILES)
def test_a_file_that_is_not_read_is_not_looked_for(
    tmp_path: Path, field: str, _owner: str, part: str, kind: str
) -> None:
    """The kubeconfig holds the content itself; the credentials are those of a command; the server has no TLS."""
    data = "token" if field == "tokenFile" else f"{field}-data"
    check(with_fields(tmp_path, part, kind, **{field: "away", data: "dGV4dA=="}))
    if part == "users":
        check(with_fields(tmp_path, part, kind, **{field: "away", "exec": {"command": "true"}}))
    if field != "tokenFile":
        plain = {"server": "http://127.0.0.1:1"} if part == "clusters" else {}
        path = with_fields(tmp_path, part, kind, **{field: "away"} | plain)
        Path(path).write_text(Path(path).read_text().replace("https://", "http://"))
        check(path)


def test_a_kubeconfig_that_is_nested_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("[" * 200_000 + "]" * 200_000)  # PyYAML's own loader ends the process here
    with pytest.raises(ConfigError, match="more than 64 levels"):
        check(str(path))


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


def test_the_namespace_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kubelet writes; outside of a Pod that of the manifests."""
    monkeypatch.setattr(kube_settings, "TOKEN_FOLDER", str(tmp_path))
    assert kube_settings.own_namespace() == "kube-system"
    (tmp_path / "namespace").write_text("lb\n")
    assert kube_settings.own_namespace() == "lb"
    (tmp_path / "namespace").write_bytes(b"\xff")
    assert kube_settings.own_namespace() == "kube-system"
