"""The source of the control plane's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube_api import programs
from tests.kube_api.programs import Missing, build_programs, find_programs

NAMES = ("kube-apiserver", "kube-controller-manager", "etcd")


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has none of them, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(programs, "GO_PLACES", "")
    return tmp_path


def program(folder: Path, name: str, text: str = "exit 0") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("by_variable", [True, False])
def test_those_of_the_machine_are_used(bare: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool) -> None:
    folder = bare / ("assets" if by_variable else "bin")
    for name in NAMES:
        program(folder, name)
    if by_variable:
        monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    found = find_programs()
    assert found is not None
    assert (found.apiserver, found.etcd) == (folder / "kube-apiserver", folder / "etcd")


@pytest.mark.parametrize("lacking", NAMES)
def test_a_part_of_them_is_not_enough(bare: Path, lacking: str) -> None:
    for name in NAMES:
        if name != lacking:
            program(bare / "bin", name)
    assert find_programs() is None


def test_without_go_what_is_missing_is_named(bare: Path) -> None:
    with pytest.raises(Missing, match="no Go"):
        build_programs(print)
    program(bare / "bin", "go", "echo go1.19.8")
    with pytest.raises(Missing, match="is go1.19.8"):
        build_programs(print)


def test_what_was_built_is_found_again_until_its_sources_change(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    program(bare / "bin", "nice", 'shift 2; exec "$@"')
    program(
        bare / "bin",
        "go",
        'case $1 in env) echo go1.26.8;; build) shift; while [ "$1" != -o ]; do shift; done; echo >"$2";; esac',
    )
    built = build_programs(said.append)
    assert built.etcd is None
    assert built.apiserver.parent.parent == bare / "cache" / "lbagent"
    assert build_programs(said.append) == built
    assert said == [programs.BUILDING]
    monkeypatch.setattr(programs, "SOURCES", ("go.mod",))
    assert find_programs() is None
