"""The set-up step of the tests: cached parts are not fetched again, unavailable ones are reported, a failure ends it with 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fetch
from tests.kube_api.programs import BuildFailed, Missing
from tests.lab import debian_packages, image_downloads
from tests.lab.netns import LabError
from tests.lab.topology import ROOT

NO_NAME = "go: dial tcp: lookup proxy.golang.org: no such host"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an apt-get that counts its calls and fails."""
    programs = tmp_path / "bin"
    programs.mkdir()
    apt = programs / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\necho "cannot resolve deb.debian.org" >&2\nexit 100\n')
    apt.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(debian_packages, "PAUSES_S", (0, 0, 0))
    return tmp_path


def calls(cache: Path) -> list[str]:
    path = cache / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_what_is_there_is_not_fetched_again(cache: Path) -> None:
    said: list[str] = []
    (cache / "lbagent" / "debian-sshd").mkdir(parents=True)
    (cache / "lbagent" / f"image-{image_downloads._digest()}").mkdir()
    assert fetch.fetch({"sshd": lambda say: fetch.debian("sshd", say), "image": fetch.image}, said.append) == 0
    assert calls(cache) == said == []


def test_packages_are_tried_several_times_and_then_named(cache: Path) -> None:
    said: list[str] = []
    assert fetch.fetch({"sshd": lambda say: fetch.debian("sshd", say)}, said.append) == 1
    asked = [line for line in calls(cache) if "download openssh-server" in line]
    assert len(asked) == 3
    assert [line.split()[-1] for line in calls(cache) if line not in asked] == ["update"] * 3  # lists may be old
    assert "cannot resolve deb.debian.org" in " ".join(said)
    assert said[-1].startswith("fetch: 1 of 1 parts are missing; is there a network?")
    assert not (cache / "lbagent" / "debian-sshd").exists()


def test_the_packages_of_the_image_are_tried_several_times(cache: Path) -> None:
    with pytest.raises(LabError, match="cannot resolve deb.debian.org"):
        fetch.image(lambda _: None)
    assert len([line for line in calls(cache) if "--download-only install python3 bird2" in line]) == 3
    assert not list((cache / "lbagent").glob("image-*"))


def test_a_machine_without_a_program_leaves_its_part_out() -> None:
    def without(_: fetch.Say) -> None:
        raise Missing("no Go (1.21 or newer) to build kube-apiserver")

    said: list[str] = []
    assert fetch.fetch({"kube-apiserver": without}, said.append) == 0
    assert said == [
        "fetch: kube-apiserver: left out, its tests are skipped: no Go (1.21 or newer) to build kube-apiserver"
    ]


@pytest.mark.parametrize(("failures", "tries"), [([NO_NAME], 2), ([NO_NAME] * 2, 3), ([], 1)])
def test_modules_are_tried_again_where_the_network_failed(failures: list[str], tries: int) -> None:
    made: list[int] = []

    def build(_: fetch.Say) -> None:
        made.append(1)
        if len(made) <= len(failures):
            raise BuildFailed(failures[len(made) - 1])

    fetch.with_go(build, lambda _: None, lambda _: None)
    assert len(made) == tries


def test_a_program_that_does_not_compile_is_tried_once() -> None:
    made: list[int] = []

    def build(_: fetch.Say) -> None:
        made.append(1)
        raise BuildFailed("main.go:7:2: undefined: x")

    with pytest.raises(BuildFailed):
        fetch.with_go(build, lambda _: None, lambda _: None)
    assert len(made) == 1


def test_every_set_of_packages_is_fetched() -> None:
    """Each name that a test gives to `unpacked` is in the set-up step."""
    done = subprocess.run(
        ["git", "grep", "-hoE", r'unpacked\("[a-z]+"', "--", "tests", "bench", "examples"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = {line.split('"')[1] for line in done.stdout.splitlines()}
    assert names == set(debian_packages.SETS)
    assert {f"Debian packages: {name}" for name in names} <= set(fetch.PARTS)


def test_make_test_fetches_first_and_a_selection_does_not() -> None:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS")
    }

    def planned(*words: str) -> str:
        done = subprocess.run(
            ["make", "-n", "test", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    whole = planned()
    assert whole.index("-m tests.fetch") < whole.index("-m pytest")
    assert "tests.fetch" not in planned("ARGS=-k icmp")
    assert sys.executable  # the same interpreter runs both
