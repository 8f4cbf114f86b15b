"""`lbagent flow` over pinned maps, with and without an agent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings, Seeds, pack_config, tick_shift
from lbagent.kernel import jiffies
from lbagent.maps.flow_hash import FlowEnd, flow_buckets
from lbagent.maps.flow_layout import FLOW
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import FLOW_WAYS, LB4_PATH, PathL4
from lbagent.maps.specs import Sizes
from lbagent.model.family import Family
from tests.cli.conftest import Run
from tests.maps.conftest import pin_settings
from tests.maps.flow_table import entry

SMALL = Sizes(
    flow4=1 << 10, flow6=1 << 10, snat4=1 << 10, snat6=1 << 10, services=1 << 10, backends=1 << 10, source_ranges=64, affinity=64,
    spill=64, fragments=64, maglev_size=251,
)  # fmt: skip
SEEDS = (0x1122334455667788, 0x99AABBCCDDEEFF00)
# client's last byte and port, VIP's last byte, protocol, state, backend
FLOWS = (
    (1, 40000, 1, 0, 1, 7),
    (1, 40001, 1, 0, 2, 7),
    (2, 40000, 1, 0, 1, 8),
    (3, 5000, 2, 1, 0, 7),
    (4, 5000, 2, 1, 1, 8),
)
JSON_1 = {
    "family": "ipv4", "protocol": "TCP", "client": "192.0.2.1:40000", "frontend": "10.96.0.1:80/TCP", "service": None,
    "backend": "10.0.0.7:8080/TCP", "backend_id": 7, "mode": "local", "snat": None, "state": "established",
}  # fmt: skip


def swapped(port: int) -> int:
    return int.from_bytes(port.to_bytes(2, "big"), "little")


@pytest.fixture
def bpffs(tmp_path: Path) -> Iterator[Path]:
    """A bpf file system with five flows of two frontends and two backends."""
    path = tmp_path / "bpffs"
    try:
        with KernelMaps.open(path, SMALL) as maps:
            pin_settings(str(path), pack_config(ProgramSettings(), SMALL, Seeds(*SEEDS), jiffies.hz()))
            for ident in (7, 8):
                data = LB4_PATH.pack(
                    bytes((10, 0, 0, ident)), bytes(4), swapped(8080).to_bytes(2, "little"), 0, 1, 0, 1500
                )
                with maps.window("lb4_path", ident * LB4_PATH.size, LB4_PATH.size) as view:
                    view[:] = data
            for number, (client, port, vip, l4, state, backend) in enumerate(FLOWS):
                address = bytes((192, 0, 2, client))
                bucket, _ = flow_buckets(FlowEnd(address, port), PathL4(l4), SEEDS, SMALL.flow4)
                data = entry(
                    Family.IPV4, int.from_bytes(address, "little"), client_port=swapped(port), vip_port=swapped(80), l4=l4,
                    vip=int.from_bytes(bytes((10, 96, 0, vip)), "little"), state=state, backend=backend,
                    last_seen=(jiffies.jiffies() >> tick_shift(jiffies.hz())) - 100 * number & 0xFFFF,
                )  # fmt: skip
                at = (bucket * FLOW_WAYS + number % FLOW_WAYS) * FLOW[Family.IPV4].size
                with maps.window("lb4_flow", at, 32) as view:
                    view[:] = b"".join(word.to_bytes(8, "little") for word in data)
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


@pytest.fixture
def flow(lb: Run, bpffs: Path, no_agent: None, tmp_path: Path) -> Run:
    """Run `lbagent flow` on these maps, without an agent."""
    del no_agent

    def call(command: str, *words: str):
        return lb("flow", command, *words, "--bpffs", str(bpffs), "--state-dir", str(tmp_path))

    return call


def clients(text: str) -> set[str]:
    return {row["client"] for row in json.loads(text)}


@pytest.mark.root
@pytest.mark.bpf
def test_list_as_json(flow: Run) -> None:
    """An array with a flow on each line; jsonl is the same without the array."""
    done = flow("list", "-o", "json")
    assert (done.code, done.err) == (0, "")
    rows = json.loads(done.out)
    assert len(rows) == 5
    (first,) = [row for row in rows if row["client"] == "192.0.2.1:40000"]
    assert {key: first[key] for key in JSON_1} == JSON_1
    assert list(first) == [*JSON_1, "idle_s", "expires_in_s", "spilled"]
    lines = done.out.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("[", "]", 7)
    again = [json.loads(line) for line in flow("list", "-o", "jsonl").out.splitlines()]
    for row in (*rows, *again):
        row["idle_s"] = row["expires_in_s"] = None  # a second may have passed
    assert again == rows
    assert json.loads(flow("list", "-o", "json", "--client", "198.51.100.0/24").out) == []
    assert flow("list", "-o", "jsonl", "--client", "198.51.100.0/24").out == ""


@pytest.mark.root
@pytest.mark.bpf
def test_list_filters(flow: Run) -> None:
    def found(*words: str) -> set[str]:
        return clients(flow("list", "-o", "json", *words).out)

    assert found("--client", "192.0.2.1") == {"192.0.2.1:40000", "192.0.2.1:40001"}
    assert found("--client", "192.0.2.2/31") == {"192.0.2.2:40000", "192.0.2.3:5000"}
    assert found("--frontend", "10.96.0.2:80/UDP") == {"192.0.2.3:5000", "192.0.2.4:5000"}
    assert found("--frontend", "10.96.0.2:80/TCP") == set()
    assert found("--backend", "10.0.0.8:8080") == {"192.0.2.2:40000", "192.0.2.4:5000"}
    assert found("--state", "closing") == {"192.0.2.1:40001"}
    assert found("--proto", "UDP", "--state", "new") == {"192.0.2.3:5000"}
    assert found("--idle-over", "5m") == {"192.0.2.3:5000", "192.0.2.4:5000"}
    assert found("-6") == set()
    assert len(found("-4", "-6")) == 5
    assert len(found("--limit", "2")) == 2
    assert "no flow" in flow("list", "--client", "198.51.100.1").err


@pytest.mark.root
@pytest.mark.bpf
def test_count(flow: Run) -> None:
    """The closing flow is left out unless a filter requests it."""
    assert flow("count") == (0, "4\n", "")
    assert json.loads(flow("count", "-o", "json").out) == {"flows": 4}
    assert flow("count", "--state", "closing").out == "1\n"
    by = json.loads(flow("count", "--by", "backend", "-o", "json").out)
    assert by == [{"key": "10.0.0.7:8080/TCP", "flows": 2}, {"key": "10.0.0.8:8080/TCP", "flows": 2}]
    assert json.loads(flow("count", "--by", "state", "-o", "json").out)[0] == {"key": "established", "flows": 3}
    assert flow("count", "--by", "proto", "--proto", "udp").out.split() == ["KEY", "FLOWS", "UDP", "2"]
    assert len(json.loads(flow("count", "--by", "client", "--limit", "2", "-o", "json").out)) == 2


@pytest.mark.root
@pytest.mark.bpf
def test_get(flow: Run) -> None:
    """Of any protocol when none is named."""
    row = json.loads(flow("get", "192.0.2.1:40000", "10.96.0.1:80", "-o", "json").out)
    assert {key: row[key] for key in JSON_1} == JSON_1
    assert json.loads(flow("get", "192.0.2.4:5000", "10.96.0.2:80", "-o", "json").out)["protocol"] == "UDP"
    assert flow("get", "192.0.2.4:5000", "10.96.0.2:80", "-o", "name").out == "192.0.2.4:5000 10.96.0.2:80/UDP\n"
    for words in (("192.0.2.4:5000", "10.96.0.2:80/TCP"), ("192.0.2.9:5000", "10.96.0.2:80")):
        done = flow("get", *words)
        assert (done.code, done.out) == (3, "")
        assert done.err.startswith(f"error: no flow from {words[0]} to {words[1]}")


@pytest.mark.root
@pytest.mark.bpf
def test_names_of_services_without_an_agent(flow: Run, tmp_path: Path) -> None:
    """Those that the file of frontend owners has; a file that is cut off has none."""
    file = tmp_path / "frontend-owners.json"
    file.write_text(json.dumps({"owners": {"shop/web": ["10.96.0.1:80/TCP"]}}))
    rows = json.loads(flow("list", "-o", "json").out)
    assert {row["service"] for row in rows if row["protocol"] == "TCP"} == {"shop/web"}
    assert {row["service"] for row in rows if row["protocol"] == "UDP"} == {None}
    assert flow("count", "--service", "shop/web").out == "2\n"
    assert json.loads(flow("count", "--by", "service", "-o", "json").out) == [
        {"key": None, "flows": 2}, {"key": "shop/web", "flows": 2},
    ]  # fmt: skip
    done = flow("count", "--service", "shop/api")
    assert done.code == 5
    assert "no agent answers" in done.err
    file.write_text('{"owners": {"shop')
    assert flow("count").code == 0
    assert flow("count", "--service", "shop/web").code == 5


@pytest.mark.root
@pytest.mark.bpf
def test_delete(flow: Run) -> None:
    """What the filter selects; a dry run deletes nothing."""
    assert json.loads(flow("delete", "--backend", "10.0.0.7", "--dry-run", "-o", "json").out) == {
        "deleted": 3,
        "dry_run": True,
    }
    assert json.loads(flow("delete", "--all", "--limit", "2", "--dry-run", "-o", "json").out)["deleted"] == 2
    assert len(json.loads(flow("list", "-o", "json").out)) == 5
    assert json.loads(flow("delete", "--backend", "10.0.0.7", "-o", "json").out) == {"deleted": 3}
    assert clients(flow("list", "-o", "json").out) == {"192.0.2.2:40000", "192.0.2.4:5000"}
    assert flow("delete", "--client", "192.0.2.4", "--idle-over", "1h").out == "0 flows deleted\n"
    assert flow("delete", "--client", "192.0.2.2", "--reset").out == "1 flows deleted\n"
    (row, other) = json.loads(flow("list", "-o", "json").out)
    reset = row if row["client"].startswith("192.0.2.2") else other
    assert (reset["backend"], reset["state"]) == (None, "established")
    assert flow("count").out == "1\n"
    assert flow("delete", "--all", "--reset").out == "1 flows deleted\n"
    assert flow("delete", "--all").out == "1 flows deleted\n"
    assert flow("delete", "--all").out == "0 flows deleted\n"


def test_delete_needs_a_filter(lb: Run, no_agent: None) -> None:
    del no_agent
    for words in ((), ("--reset",), ("--limit", "5"), ("--dry-run",)):
        done = lb("flow", "delete", *words)
        assert (done.code, done.out) == (2, "")
        assert "--all" in done.err
    assert lb("flow", "delete", "--all").code == 3


@pytest.mark.root
@pytest.mark.bpf
def test_nothing_is_deleted_while_maps_are_resized(flow: Run, bpffs: Path) -> None:
    (bpffs / "v1" / "resize").mkdir()
    done = flow("delete", "--all")
    assert (done.code, done.out) == (4, "")
    assert "resized" in done.err
    assert flow("count").out == "4\n"


@pytest.mark.parametrize(
    "words",
    [("list", "--client", "x"), ("list", "--client", "10.0.0.1", "-6"), ("count", "--limit", "1"), ("get", "10.0.0.1", "10.0.0.2:80"),
     ("get", "10.0.0.1:1", "[fd00::1]:80"), ("list", "--state", "x"), ("list", "--idle-over", "x"), ("list", "--limit", "0")],
)  # fmt: skip
def test_wrong_words_end_with_2(lb: Run, no_agent: None, words: tuple[str, ...]) -> None:
    del no_agent
    done = lb("flow", *words)
    assert (done.code, done.out) == (2, "")
    flag = next((word for word in words if word.startswith("-")), "")
    assert (flag or "CLIENT") in done.err or "FRONTEND" in done.err


def test_without_pins(lb: Run, no_agent: None) -> None:
    """As `map dump` does."""
    del no_agent
    wanted = lb("map", "dump")
    for words in (("list",), ("count",), ("get", "10.0.0.1:1", "10.0.0.2:80")):
        assert lb("flow", *words) == wanted
    assert wanted.code == 3
