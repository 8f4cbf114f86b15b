"""A named pipe where a file is expected: each command ends, and its message names the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.timeout(120)  # an open of a pipe without a writer never ends


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    return str(path)


@pytest.mark.parametrize(
    "command",
    [
        "config check --config PIPE",
        "config show --config PIPE",
        "config check --announce PIPE",
        "cloud plan -f FOLDER --provider pool --config PIPE",
        "cloud plan -f FOLDER --provider edge --config PIPE",
        "cloud plan -f FOLDER --provider fake --config PIPE",
        "cloud pools --config PIPE",
        "cloud run --provider none --kubeconfig PIPE",
        "agent --config PIPE",
        "agent --kubeconfig PIPE",
    ],
)
def test_a_file_that_is_named(lb: Run, no_agent: None, pipe: str, tmp_path: Path, command: str) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    done = lb(*command.replace("PIPE", pipe).replace("FOLDER", str(folder)).split())
    assert done.code == 2
    assert pipe in done.err
    assert "ot a regular file" in done.err


@pytest.mark.parametrize("command", ["config check --manifests FOLDER", "plan -f FOLDER"])
def test_a_pipe_in_a_folder_of_manifests(lb: Run, no_agent: None, pipe: str, tmp_path: Path, command: str) -> None:
    (tmp_path / "web.yaml").write_text(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n"
        "spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"
    )
    (tmp_path / "folder.yaml").mkdir()
    done = lb(*command.replace("FOLDER", str(tmp_path)).split())
    assert done.code == 1
    assert f"{pipe}: not a regular file" in done.err
    assert f"{tmp_path / 'folder.yaml'}: not a regular file" in done.err


def test_a_state_of_apilb(lb: Run, no_agent: None, pipe: str, tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text(
        "{servers: ['192.0.2.1:6443'], bindAddress: '127.0.0.1:7443', apiLoadBalancers: [{}]}"
    )
    done = lb("apilb", "show", "-f", str(tmp_path / "pools.yaml"), "--state", pipe)
    assert (done.code, done.err) == (2, f"{pipe}: not a regular file\n")


def test_a_pipe_of_the_command_line_is_still_read(lb: Run, no_agent: None, tmp_path: Path) -> None:
    """As `plan -f <(kubectl get ...)` of a shell."""
    reader, writer = os.pipe()
    os.write(
        writer,
        b"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n",
    )
    os.close(writer)
    try:
        done = lb("plan", "-f", f"/dev/fd/{reader}")
    finally:
        os.close(reader)
    assert (done.code, "10.96.0.1:80/TCP" in done.out) == (0, True), done.err
