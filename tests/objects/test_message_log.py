"""A fault of a folder is logged once, by file and line; so is its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lbagent.sources.folder.source import FolderSource
from lbagent.sources.operator import FILE, OperatorSource

GOOD = """\
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
"""


@asynccontextmanager
async def following(folder: Path):  # type: ignore[no-untyped-def]
    """Run a folder source for a while."""
    source = FolderSource(str(folder), poll_s=0.05, rescan_s=0.05)
    task = asyncio.create_task(source.run(lambda _changes: None))
    try:
        await asyncio.wait_for(source.synced.wait(), 10)
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is a log line
            await asyncio.sleep(0.01)


def logged(caplog: pytest.LogCaptureFixture, event: str = "manifest refused") -> list[tuple[str, str]]:
    return [(record.levelname, record.error) for record in caplog.records if record.getMessage() == event]  # type: ignore[attr-defined]


async def test_a_file_that_does_not_parse(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One error line with file, line and what was kept, and one line when it is good again."""
    caplog.set_level(logging.INFO)
    web = tmp_path / "web.yaml"
    web.write_text(GOOD)
    async with following(tmp_path) as source:
        assert logged(caplog) == []
        web.write_text(GOOD + "---\nkind: [\n")
        await until(lambda: bool(logged(caplog)))
        await asyncio.sleep(0.2)  # several looks at the folder
        [(level, error)] = logged(caplog)
        assert level == "ERROR"
        assert error.startswith(f"{web}:6: ")
        assert error.endswith("; kept 1 objects of generation 1")
        assert [str(message) for message in source.problems()] == [error]
        web.write_text(GOOD)
        await until(lambda: told_end(caplog))
    assert len(logged(caplog)) == 1


def told_end(caplog: pytest.LogCaptureFixture) -> bool:
    return any(record.getMessage() == "the input has no faults any more" for record in caplog.records)


async def test_a_folder_that_disappears(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "web.yaml").write_text(GOOD)
    async with following(folder) as source:
        folder.rename(tmp_path / "away")
        await until(lambda: bool(logged(caplog)))
        assert not source.trusted
    [(level, error)] = logged(caplog)
    assert level == "ERROR"
    assert error == f"{folder}: the folder cannot be read: No such file or directory; kept 1 objects of generation 1"


async def test_a_folder_that_was_never_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(tmp_path / "none"):
        pass
    [(level, error)] = logged(caplog, "warning about an object")
    assert level == "WARNING"
    assert "No such file or directory" in error


async def test_remembered_states_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text('{"kind": ')
    source = OperatorSource(str(tmp_path))
    task = asyncio.create_task(source.run(lambda _changes: None))
    await asyncio.wait_for(source.synced.wait(), 10)
    task.cancel()
    [(level, error)] = logged(caplog, "saved backend states refused")
    assert level == "ERROR"
    assert FILE in error


async def test_a_thousand_faulty_files_do_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(500):
        (folder / f"{number}.yaml").write_text("kind: [")
    async with following(folder):
        pass
    assert len(logged(caplog)) == 200
    assert [record.left_out for record in caplog.records if "too many messages" in record.getMessage()] == [300]  # type: ignore[attr-defined]
