"""Pool files of a host: what is served of them, and the effect of an invalid, half-written or deleted file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lbagent.agent.sources import _read_pools
from lbagent.apilb.native.followed_pools import FollowedPools
from lbagent.apilb.native.kept_state import Kept, KeptFile


def text(name: str = "lb", servers: tuple[str, ...] = ("10.0.0.1:6443",), **fields: Any) -> str:
    pool = {
        "name": name, "mode": "native", "bindAddress": "127.0.0.1:7443", "servers": servers,
        "hostConfigPath": f"/etc/lbagent/apilb.d/{name}.yaml", "apiLoadBalancers": [{}],
    }  # fmt: skip
    return json.dumps({"apiLoadBalancerPools": {"pool": pool | fields}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "apilb.d"
    made.mkdir()
    return made


def followed(path: Path, kept: Kept | None = None) -> FollowedPools:
    return FollowedPools(str(path), _read_pools, (kept or Kept()).pools)


def served(pools: FollowedPools) -> dict[str, tuple[str, ...]]:
    return {pool.instance.name: pool.instance.servers for pool in pools.pools()}


def looked(pools: FollowedPools) -> FollowedPools:
    """Poll as often as a change may need."""
    pools.look()
    pools.look()
    return pools


def kept_by(pools: FollowedPools, tmp_path: Path) -> Kept:
    """Return the stored state that a later agent reads."""
    KeptFile(str(tmp_path / "state")).write(Kept(pools=pools.kept()))
    return KeptFile(str(tmp_path / "state")).read()


def test_a_folder_s_files_are_served_by_name(folder: Path) -> None:
    for name in ("one.yaml", "two.yml", "three.json"):
        (folder / name).write_text(text(name.partition(".")[0], bindAddress=f"127.0.0.1:{7000 + len(name)}"))
    for name in (".hidden.yaml", "notes.txt", "four.yaml.new"):
        (folder / name).write_text("no pool at all")
    pools = followed(folder)
    assert pools.look()
    assert set(served(pools)) == {"one", "two", "three"}
    assert (pools.messages(), pools.trusted) == ([], True)
    assert not pools.look()


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    path.write_text(text())
    assert served(looked(followed(path))) == {"lb": ("10.0.0.1:6443",)}


def test_instances_of_other_hosts_and_of_haproxy_are_not_ours(folder: Path) -> None:
    (folder / "a.yaml").write_text(
        text(apiLoadBalancers=[{"host": {"ssh": {"address": "10.0.0.9", "password": "s3cret"}}}])
    )
    (folder / "b.yaml").write_text(text(mode="haproxy"))
    pools = looked(followed(folder))
    assert served(pools) == {}
    assert [message.warning for message in pools.messages()] == [True, True]
    assert "s3cret" not in str(pools.messages())


def test_a_bad_file_keeps_what_it_said(folder: Path) -> None:
    path = folder / "lb.yaml"
    path.write_text(text())
    pools = looked(followed(folder))
    for bad in ("servers: [", text(servers=("not a server",)), text(bindAddress="127.0.0.1")):
        path.write_text(bad)
        looked(pools)
        assert served(pools) == {"lb": ("10.0.0.1:6443",)}
        (message,) = pools.messages()
        assert str(path) in str(message)
        assert "served" in str(message)
        assert pools.trusted
    path.write_text(text(servers=("10.0.0.2",)))
    looked(pools)
    assert (served(pools), pools.messages()) == ({"lb": ("10.0.0.2",)}, [])


def test_a_bad_file_harms_no_other(folder: Path) -> None:
    (folder / "bad.yaml").write_text("{")
    (folder / "lb.yaml").write_text(text())
    pools = looked(followed(folder))
    assert set(served(pools)) == {"lb"}
    assert not pools.trusted  # its earlier pools are unknown
    assert pools.distrust in pools.messages()


def test_a_file_is_read_when_it_has_stopped_changing(folder: Path) -> None:
    path = folder / "lb.yaml"
    path.write_text(text())
    pools = looked(followed(folder))
    path.write_text(text(servers=("10.0.0.2", "10.0.0.3")))
    assert not pools.look()
    assert served(pools) == {"lb": ("10.0.0.1:6443",)}
    assert pools.look()
    assert served(pools) == {"lb": ("10.0.0.2", "10.0.0.3")}


def test_a_file_that_comes_back_at_once_was_never_gone(folder: Path) -> None:
    path = folder / "lb.yaml"
    path.write_text(text())
    pools = looked(followed(folder))
    path.unlink()
    assert not pools.look()
    assert set(served(pools)) == {"lb"}
    path.write_text(text(servers=("10.0.0.2",)))
    looked(pools)
    assert served(pools) == {"lb": ("10.0.0.2",)}
    path.unlink()
    looked(pools)
    assert served(pools) == {}
    assert pools.trusted


def test_of_two_files_with_one_name_the_first_holds(folder: Path) -> None:
    (folder / "a.yaml").write_text(text(servers=("10.0.0.1",)))
    (folder / "b.yaml").write_text(text(servers=("10.0.0.2",)))
    pools = looked(followed(folder))
    assert served(pools) == {"lb": ("10.0.0.1",)}
    (message,) = pools.messages()
    assert "the name lb is taken by apilb pool/lb of" in str(message)
    (folder / "a.yaml").unlink()
    looked(pools)
    assert (served(pools), pools.messages()) == ({"lb": ("10.0.0.2",)}, [])


def gone(path: Path) -> None:
    for each in path.iterdir():
        each.unlink()
    path.rmdir()


def test_a_folder_that_is_gone_keeps_everything_and_an_empty_one_says_there_is_nothing(folder: Path) -> None:
    (folder / "lb.yaml").write_text(text())
    pools = looked(followed(folder))
    gone(folder)
    looked(pools)
    assert set(served(pools)) == {"lb"}
    assert not pools.trusted
    assert "no such folder" in str(pools.messages()[0])
    folder.mkdir()
    looked(pools)
    assert (served(pools), pools.trusted) == ({}, True)


def test_a_file_that_is_gone_says_that_there_is_no_pool(tmp_path: Path) -> None:
    path = tmp_path / "lb.yaml"
    path.write_text(text())
    pools = looked(followed(path))
    path.unlink()
    looked(pools)
    assert (served(pools), pools.trusted) == ({}, True)


def test_a_path_that_was_never_there_serves_nothing_and_says_so(tmp_path: Path) -> None:
    pools = looked(followed(tmp_path / "apilb.d"))
    assert (served(pools), pools.trusted) == ({}, False)
    assert looked(followed(tmp_path / "lb.yaml")).trusted


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


BREAKS: dict[str, Callable[[Path], object]] = {
    "broken": lambda path: path.write_text("{"),
    "cut off": lambda path: path.write_text(text()[:40]),
    "a folder": unreadable,
    "not text": lambda path: path.write_bytes(b"\xff\xfe\0"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_restart_knows_what_a_bad_file_said(folder: Path, tmp_path: Path, how: str) -> None:
    path = folder / "lb.yaml"
    path.write_text(text(servers=("10.0.0.1", "api.example"), onMarkedDown="keep", healthCheck={"path": "/readyz"}))
    before = looked(followed(folder))
    kept = kept_by(before, tmp_path)
    BREAKS[how](path)
    pools = looked(followed(folder, kept))
    assert served(pools) == {"lb": ("10.0.0.1", "api.example")}
    assert pools.trusted
    assert pools.pools()[0].check.path == "/readyz"
    assert pools.pools()[0].instance.on_marked_down == "keep"
    assert pools.kept() == before.kept()


def test_a_restart_without_the_folder_serves_what_was_kept(folder: Path, tmp_path: Path) -> None:
    (folder / "lb.yaml").write_text(text())
    kept = kept_by(looked(followed(folder)), tmp_path)
    gone(folder)
    pools = looked(followed(folder, kept))
    assert (set(served(pools)), pools.trusted) == ({"lb"}, False)
    folder.mkdir()
    assert served(looked(pools)) == {}


def test_a_restart_forgets_a_file_that_was_removed_meanwhile(folder: Path, tmp_path: Path) -> None:
    (folder / "lb.yaml").write_text(text())
    kept = kept_by(looked(followed(folder)), tmp_path)
    (folder / "lb.yaml").unlink()
    pools = looked(followed(folder, kept))
    assert (served(pools), pools.trusted, pools.kept()) == ({}, True, {})


def test_no_secret_is_kept(folder: Path, tmp_path: Path) -> None:
    (folder / "lb.yaml").write_text(text(ssh={"password": "s3cret"}, apiLoadBalancers=[{"host": {"direct": {}}}]))
    pools = looked(followed(folder))
    assert set(served(pools)) == {"lb"}
    kept_by(pools, tmp_path)
    found = tmp_path / "state" / "apilb.json"
    assert "s3cret" not in found.read_text()
    assert found.stat().st_mode & 0o777 == 0o600


def test_a_state_that_cannot_be_used_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "apilb.json"
    deep = '{"x": ' + "[" * 5000 + "]" * 5000 + "}"
    for content in (deep, '{"version": 1, "pools"', '{"version": 2}', '{"version": 1, "pools": []}', ""):
        path.write_text(content)
        assert KeptFile(str(tmp_path)).read() == Kept()


def test_a_state_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    keeper = KeptFile(str(tmp_path / "state"))
    keeper.write(Kept())
    assert "apilb.json cannot be written: Not a directory" in keeper.problem
    (tmp_path / "state").unlink()
    keeper.write(Kept())
    assert keeper.problem == ""


@pytest.mark.timeout(60)
def test_a_pipe_or_a_folder_among_the_files_is_named_and_stops_no_other_file(folder: Path) -> None:
    (folder / "a.yaml").write_text(text("a"))
    pools = followed(folder)
    pools.look()
    os.mkfifo(folder / "b.yaml")
    (folder / "c.yaml").mkdir()
    (folder / "a.yaml").write_text(text("a", servers=("10.0.0.9:6443",)))
    assert served(looked(pools)) == {"a": ("10.0.0.9:6443",)}
    messages = [str(message) for message in pools.messages()]
    for name in ("b.yaml", "c.yaml"):
        assert any(f"{folder / name}: not a regular file" in message for message in messages), messages
