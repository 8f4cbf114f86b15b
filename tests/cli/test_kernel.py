"""Commands over real pinned maps, without an agent: map dump, verify, status, cleanup."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.specs import Sizes
from lbagent.model.path_info import PathInfo
from lbagent.render.renderer_types import Difference
from lbagent.targets.bpf import dry_run
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.plan import plan
from lbagent.targets.bpf.shadow import Shadow
from tests.api.serving import Agent
from tests.cli.conftest import Run
from tests.cli.test_offline import DUMP, MANIFEST

pytestmark = [pytest.mark.root, pytest.mark.bpf]

FIRST = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.99, ports: [{port: 80}]}}"
SMALL = Sizes(
    flow4=1 << 10, flow6=1 << 10, snat4=1 << 10, snat6=1 << 10, services=1 << 10, backends=1 << 10, source_ranges=64, affinity=64,
    spill=64, fragments=64, maglev_size=251,
)  # fmt: skip


@pytest.fixture
def bpffs(tmp_path: Path) -> Iterator[Path]:
    """A separate bpf file system, with the maps of a plan in it."""
    path = tmp_path / "bpffs"
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "web.yaml").write_text(MANIFEST)
    state = dry_run.dry_run(str(folder)).state
    try:
        with KernelMaps.open(path, SMALL) as maps:
            shadow = Shadow(SMALL)
            assert not apply(plan(state, shadow, lambda _: PathInfo()), maps, shadow).failed
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def test_map_dump(lb: Run, bpffs: Path) -> None:
    """The kernel has the entries that `plan` printed."""
    assert lb("map", "dump", "--bpffs", str(bpffs)) == (0, DUMP, "")


def test_map_dump_as_json(lb: Run, bpffs: Path) -> None:
    """The fields of the lines in lower case, numbers as numbers."""
    rows = json.loads(lb("map", "dump", "--bpffs", str(bpffs), "-o", "json").out)
    assert [row["kind"] for row in rows] == [line.partition(":")[0] for line in DUMP.splitlines()]
    for row, line in zip(rows, DUMP.splitlines(), strict=True):
        words = dict(word.split("=", 1) for word in line.partition(": ")[2].split(" ") if row["kind"] != "MAGLEV")
        if words:
            assert {word.lower(): value for word, value in words.items()} == {
                key: str(value) for key, value in row.items() if key != "kind"
            }
    assert isinstance(rows[0]["id"], int)


def test_verify_as_json(lb: Run, bpffs: Path) -> None:
    assert lb("verify", "--bpffs", str(bpffs), "-o", "json") == (0, "[]\n", "")
    with KernelMaps.open(bpffs, create=False) as maps:
        maps.delete_many("lb4_backend", [key for key, _ in maps.items("lb4_backend")])
    done = lb("verify", "--bpffs", str(bpffs), "-o", "json")
    assert done.code == 1
    assert any("10.96.0.1:80/TCP" in row["difference"] for row in json.loads(done.out))


def test_a_plan_with_the_ids_of_the_maps(lb: Run, bpffs: Path, tmp_path: Path) -> None:
    """A Service that sorts first and is not in the maps yet gets no id of the others, which `diff` then shows as equal."""
    folder = tmp_path / "manifests"
    (folder / "a.yaml").write_text(FIRST)
    fresh = lb("plan", "-f", str(folder)).out.splitlines()
    lines = lb("plan", "-f", str(folder), "--ids-from-maps", "--bpffs", str(bpffs)).out.splitlines()
    dumped = DUMP.splitlines()
    assert not set(dumped) <= set(fresh)
    assert set(dumped) <= set(lines)
    assert sorted(word for line in set(lines) - set(dumped) for word in line.split() if word.startswith("ADDR")) == [
        "ADDR=10.96.0.99:0/ANY", "ADDR=10.96.0.99:80", "ADDR=10.96.0.99:80/TCP",
    ]  # fmt: skip
    assert lb("plan", "-f", str(folder), "--ids-from-maps", "--bpffs", str(bpffs / "none")).code == 3


def test_without_bpffs_the_agent_says_where_its_maps_are(lb: Run, bpffs: Path, agent: Agent) -> None:
    agent.bpffs = str(bpffs)
    assert lb("map", "dump") == (0, DUMP, "")
    assert lb("verify") == (0, "", "")
    assert lb("map", "dump", "--bpffs", str(bpffs / "none")).code == 3


def test_verify(lb: Run, bpffs: Path) -> None:
    """No finding after a plan; a slot without its backend is named."""
    assert lb("verify", "--bpffs", str(bpffs)) == (0, "", "")
    with KernelMaps.open(bpffs, create=False) as maps:
        maps.delete_many("lb4_backend", [key for key, _ in maps.items("lb4_backend")])
    done = lb("verify", "--bpffs", str(bpffs))
    assert done.code == 1
    assert "10.96.0.1:80/TCP" in done.out


def test_verify_looks_again(lb: Run, bpffs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may write between the reads of two maps: an entry that is consistent at the second read is no finding."""
    with KernelMaps.open(bpffs, create=False) as maps:
        rows = list(maps.items("lb4_backend"))
        maps.delete_many("lb4_backend", [key for key, _ in rows])

        def put_back(_seconds: float) -> None:
            maps.put_many("lb4_backend", rows)

        monkeypatch.setattr("lbagent.cli.verbs.verify.time.sleep", put_back)
        assert lb("verify", "--bpffs", str(bpffs)) == (0, "", "")


def test_verify_finds_a_frontend_without_its_slot_0(lb: Run, bpffs: Path) -> None:
    """No packet finds it, although all other entries exist. Slot 0 of 10.96.0.1:80/TCP, by the bytes of its key (Cilium's layout)."""
    with KernelMaps.open(bpffs, create=False) as maps:
        key = next(key for key, _ in maps.items("lb4_service") if key[:8] == bytes((10, 96, 0, 1, 0, 80, 0, 0)))
        maps.delete_many("lb4_service", [key])
    done = lb("verify", "--bpffs", str(bpffs))
    assert (done.code, done.out) == (1, "bpf: 10.96.0.1:80/TCP: missing: slot 0 is missing, so no packet finds it\n")


CHANGED = MANIFEST.replace("10.244.1.1", "10.244.1.77", 1)


def test_verify_compares_with_manifests(lb: Run, bpffs: Path, tmp_path: Path) -> None:
    """Without an agent: each Service that the maps lack, hold too much, or have otherwise, is named; nothing is changed."""
    folder = tmp_path / "manifests"
    words = ["verify", "-f", str(folder), "--bpffs", str(bpffs)]
    assert lb(*words) == (0, "", "")
    before = lb("map", "dump", "--bpffs", str(bpffs)).out
    (folder / "a.yaml").write_text(FIRST)
    done = lb(*words)
    assert (done.code, done.out) == (1, "bpf: default/a 10.96.0.99:80/TCP: missing: the maps have no entry of it\n")
    (folder / "a.yaml").unlink()
    (folder / "web.yaml").write_text(CHANGED)
    rows = json.loads(lb(*words, "-o", "json").out)
    assert {(row["renderer"], row["service"], row["kind"], row["repaired"]) for row in rows} == {
        ("bpf", "shop/web", "differs", False)
    }
    assert "10.96.0.1:80/TCP" in {row["frontend"] for row in rows}
    assert all(
        "no backend 10.244.1.77" in row["detail"] and "no object has backend 10.244.1.1:" in row["detail"]
        for row in rows
    )
    (folder / "web.yaml").write_text(FIRST)
    found = {(row["service"], row["frontend"], row["kind"]) for row in json.loads(lb(*words, "-o", "json").out)}
    assert ("default/a", "10.96.0.99:80/TCP", "missing") in found
    assert (None, "10.96.0.1:80/TCP", "stale") in found
    assert lb("map", "dump", "--bpffs", str(bpffs)).out == before
    assert lb(*words, "--repair").code == 5, "only an agent repairs maps"
    assert lb("verify", "-f", str(folder), "--bpffs", str(bpffs / "none")).code == 3
    assert lb(*words, "--renderer", "noname").code == 3
    assert lb(*words, "--renderer", "record").code == 2


def test_verify_names_the_service_of_a_frontend(lb: Run, bpffs: Path, agent: Agent) -> None:
    """The maps have no names: the agent has them. 10.96.0.10:80/TCP is shop/web there (tests/api/serving.py)."""
    with KernelMaps.open(bpffs, create=False) as maps:
        maps.put_many("lb4_reverse_nat", [(struct.pack("=I", 300), bytes((10, 96, 0, 10, 0, 80, 6, 0)))])
    agent.bpffs = str(bpffs)
    done = lb("verify")
    text = "slot 0 is missing, so no packet finds it"
    assert (done.code, done.out) == (1, f"bpf: shop/web 10.96.0.10:80/TCP: missing: {text}\n")


def test_verify_says_what_the_agent_finds(lb: Run, bpffs: Path, agent: Agent) -> None:
    """An agent with these pins has their desired content; an agent with other pins gets no request."""
    agent.bpffs = str(bpffs)
    agent.differences = [Difference("differs", "the path of backend 1 (10.244.1.1:8080/TCP)")]
    done = lb("verify")
    assert (done.code, done.out) == (1, "bpf: differs: the path of backend 1 (10.244.1.1:8080/TCP)\n")
    agent.bpffs = "/elsewhere"
    assert lb("verify", "--bpffs", str(bpffs)).code == 0


def test_verify_ends_with_the_error_of_a_comparison_that_fails(lb: Run, bpffs: Path, agent: Agent) -> None:
    """Never with 0: nothing is known then."""
    agent.bpffs = str(bpffs)
    agent.comparison_error = "the maps cannot be read"
    done = lb("verify")
    assert (done.code, done.out) == (1, "")
    assert "the maps cannot be read" in done.err


def test_status_without_an_agent(lb: Run, bpffs: Path, tmp_path: Path) -> None:
    done = lb("status", "--bpffs", str(bpffs), "--socket", str(tmp_path / "none.sock"))
    assert done.code == 5
    assert "4 service rows, 2 backends" in done.out
    assert "none attached" in done.out


def test_cleanup(lb: Run, bpffs: Path) -> None:
    """Every pin is removed, once."""
    done = lb("cleanup", "--bpffs", str(bpffs))
    assert done.code == 0
    assert "removed map lb4_service" in done.out
    assert lb("map", "dump", "--bpffs", str(bpffs)).code == 3
    assert "nothing to clean up" in lb("cleanup", "--bpffs", str(bpffs)).err


def test_cleanup_names_the_state_folder_that_stays(lb: Run, bpffs: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    words = ("cleanup", "--bpffs", str(bpffs), "--state-dir", str(state))
    state.mkdir()
    (state / "operator.json").write_text("{}")
    out = lb(*words).out
    assert f"left {state}, with the states that were set and the copies of manifests; `rm -r` removes it\n" in out
    assert (state / "operator.json").exists()
    assert f"left {state}" in lb(*words).err
    shutil.rmtree(state)
    assert "left" not in lb(*words).err


def test_cleanup_takes_no_ordinary_files_away(lb: Run, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "precious").write_text("mine")
    done = lb("cleanup", "--bpffs", str(tmp_path))
    assert done.code == 2
    assert "not on a bpf file system; nothing was removed" in done.err
    assert (tmp_path / "v1" / "precious").read_text() == "mine"
