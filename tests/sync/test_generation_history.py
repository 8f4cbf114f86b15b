"""The history: what it counts, and that its file is bounded, atomic, and never delays anything."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest

from lbagent.model.address import L3n4Addr
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.sync import generation_history
from lbagent.sync.change_causes import ChangeCauses
from lbagent.sync.generation_history import MAX_GENERATIONS, NO_CHANGE, GenerationHistory, compared
from tests.sync.generations import generation
from tests.sync.rig import ListSource, endpoints, make, running, service


class Counts:
    writes = 0


class Served:
    """A data plane whose State the test sets."""

    def __init__(self) -> None:
        self.state, self.counts = State(), Counts()

    @property
    def generation(self) -> int:
        return self.state.generation

    def put(self, *names: str, writes: int = 0) -> None:
        services = tuple(svc(name) for name in names)
        self.state = State(self.state.generation + 1, services)
        self.counts.writes += writes


def svc(address: str, ident: int = 1, **fields: object) -> SVC:
    return SVC(L3n4Addr.parse(address), ident, ServiceName("shop", "web"), **fields)  # type: ignore[arg-type]


def opened(folder: Path) -> GenerationHistory:
    return GenerationHistory(str(folder), ChangeCauses())


@asynccontextmanager
async def writing(history: GenerationHistory):  # type: ignore[no-untyped-def]
    task = asyncio.create_task(history.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def add(history: GenerationHistory, served: Served, count: int = 1) -> None:
    """Put so many generations in force."""
    follow = history.follow(served)
    for _ in range(count):
        served.put(f"10.96.0.1:{1 + served.generation % 2000}")
        follow(0, 0.001)


def lines(folder: Path) -> list[int]:
    found = (folder / "history.jsonl").read_bytes().splitlines()
    return [json.loads(line)["generation"] for line in found]


# --- what it counts ---


def test_frontends_that_came_changed_and_went() -> None:
    one, two, three = svc("10.0.0.1:80"), svc("10.0.0.2:80"), svc("10.0.0.3:80")
    wildcard = svc("10.0.0.9:0", 0, wildcard=True)
    other = svc("10.0.0.2:80", 7)
    found = compared(State(1, (one, two, three)), State(2, (wildcard, one, other, svc("10.0.0.4:80"))))
    assert [[str(each.frontend) for each in group] for group in found] == [
        ["10.0.0.4:80"],
        ["10.0.0.2:80"],
        ["10.0.0.3:80"],
    ]
    equal = svc("10.0.0.2:80")
    assert compared(State(1, (one, two, three)), State(2, (one, equal, three))) == ([], [], [])
    assert compared(State(1, (one, two, three)), State(2, (one, other, three)))[1] == [other]


async def test_passes_of_a_loop(tmp_path: Path) -> None:
    """By the real loop and the real data plane over maps in memory."""
    source = ListSource()
    loop, target, _ = make(None, source)
    history = GenerationHistory(str(tmp_path), loop.causes)
    loop.runners[0].on_in_force.append(history.follow(target))
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await asyncio.sleep(0)
        await loop.settled()
        first_writes = target.counts.writes
        source.put(service(2), endpoints(2, 1))
        await loop.settled()
        source.put(endpoints(2, 1, 2))
        await loop.settled()
        source.put(endpoints(2, 1, 2))  # an equal object makes no generation
        await loop.settled()
        source.drop(service(2))
        await loop.settled()
    rows = history.newest()[::-1]
    assert [row.generation for row in rows] == [1, 2, 3, 4]
    assert [(row.added, row.changed, row.removed) for row in rows] == [(1, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert [row.cause for row in rows] == [
        "start of the agent",
        "f:0 Service default/s2, EndpointSlice default/s2-x",
        "f:0 EndpointSlice default/s2-x",
        "f:0 Service default/s2 deleted",
    ]
    assert rows[0].writes == first_writes
    assert sum(row.writes for row in rows) == target.counts.writes
    assert [row.frontends for row in rows[1:]] == [["10.96.0.2:80/TCP"]] * 3
    assert history.newest(1) == rows[3:]


async def test_a_pass_without_a_change_of_objects(tmp_path: Path) -> None:
    history, served = opened(tmp_path), Served()
    follow = history.follow(served)
    served.put("10.0.0.1:80", writes=5)
    follow(0, 0.0015)
    served.counts.writes += 100  # a retry
    follow(0, 1.0)
    served.put(writes=2)
    follow(0, 0.001)
    newest, first = history.newest()
    assert (first.cause, first.writes, first.duration_ms) == (NO_CHANGE, 5, 1.5)
    assert (newest.generation, newest.removed, newest.writes) == (2, 1, 2)


async def test_a_line_names_some_frontends_of_many(tmp_path: Path) -> None:
    history, served = opened(tmp_path), Served()
    served.put(*(f"10.0.{number >> 8}.{number & 255}:80" for number in range(5000)))
    history.follow(served)(0, 0.1)
    (row,) = history.newest()
    assert (row.added, len(row.frontends)) == (5000, 16)
    assert len(msgspec.json.encode(row)) < 1000


# --- the file ---


async def test_it_is_kept_over_a_restart(tmp_path: Path) -> None:
    history = opened(tmp_path / "state")
    async with writing(history):
        await add(history, Served(), 3)
    assert (tmp_path / "state" / "history.jsonl").stat().st_mode & 0o777 == 0o600
    again = opened(tmp_path / "state")
    assert again.newest() == history.newest()
    async with writing(again):
        await add(again, Served(), 2)
    assert [row.generation for row in opened(tmp_path / "state").newest()] == [2, 1, 3, 2, 1]


async def test_file_and_memory_are_bounded(tmp_path: Path) -> None:
    history, served, most = opened(tmp_path), Served(), 0
    for _ in range(9):
        await add(history, served, 500)
        history._write(*history._take())
        assert lines(tmp_path)[-1] == served.generation
        most = max(most, len(lines(tmp_path)))
    assert MAX_GENERATIONS < most <= 2 * MAX_GENERATIONS
    assert lines(tmp_path)[-1000:] == list(range(3501, 4501))
    assert len(opened(tmp_path).newest()) == MAX_GENERATIONS


async def test_a_generation_costs_an_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that are written for a change do not depend on the generations before, and nothing waits for the disk."""
    history, served, written = opened(tmp_path), Served(), []
    monkeypatch.setattr(os, "fsync", lambda _fd: pytest.fail("a disk delays the history"))
    append = generation_history._append
    monkeypatch.setattr(
        generation_history, "_append", lambda path, data: (written.append(len(data)), append(path, data))
    )
    for number in (100, 1, 800, 1):
        await add(history, served, number)
        history._write(*history._take())
    assert written[1] == pytest.approx(written[3], abs=20)
    assert written[1] < 300


def test_damaged_lines_are_left_out_and_go_with_the_next_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = [msgspec.json.encode(generation(number)) for number in (1, 2, 3)]
    path = tmp_path / "history.jsonl"
    path.write_bytes(good[0] + b"\n" + good[1][:30] + b"\n\0\xff\n" + good[2] + b"\n" + b'{"generation": 4')
    history = opened(tmp_path)
    assert [row.generation for row in history.newest()] == [3, 1]
    assert [(record.message, record.lines) for record in caplog.records] == [("lines of the history are damaged", 3)]  # type: ignore[attr-defined]
    asyncio.run(add(history, Served(), 1))
    history._write(*history._take())
    assert lines(tmp_path) == [1, 3, 1]


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk on which a part of a line fits."""

    def append(path: str, data: bytes) -> None:
        with open(path, "ab") as file:
            file.write(data[:40])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def replace(_path: str, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(generation_history, "_append", append)
        patch.setattr(generation_history, "replace_private", replace)
        yield


async def test_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    history, served = opened(tmp_path), Served()
    await add(history, served, 2)
    history._write(*history._take())
    with full_disk(monkeypatch):
        for _ in range(3):
            await add(history, served, 1)
            history._write(*history._take())
    assert [record.message for record in caplog.records] == ["the history was not written"]
    assert [row.generation for row in history.newest()] == [5, 4, 3, 2, 1]
    await add(history, served, 1)
    history._write(*history._take())
    assert caplog.records[-1].message == "the history is written again"
    assert lines(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("foreign", ["folder", "pipe", "link", "file as folder"])
async def test_a_foreign_file_never_stops_the_loop(
    tmp_path: Path, foreign: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    path = state / "history.jsonl"
    if foreign == "file as folder":
        state.write_text("")
    else:
        state.mkdir()
    if foreign == "folder":
        path.mkdir()
    elif foreign == "pipe":
        os.mkfifo(path)
    elif foreign == "link":
        (tmp_path / "other").write_text("of another program\n")
        path.symlink_to(tmp_path / "other")
    history = opened(state)
    async with asyncio.timeout(10), writing(history):
        await add(history, Served(), 1)
        await asyncio.sleep(0)
    assert [row.generation for row in history.newest()] == [1]
    assert len({record.message for record in caplog.records}) == len(caplog.records) <= 2
    if foreign == "link":
        assert (tmp_path / "other").read_text() == "of another program\n"
