"""The thread of a renderer: it waits so that nothing else does."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from lbagent.errors import KernelError
from lbagent.render.renderer_names import RendererError
from lbagent.render.renderer_thread import RendererThread


@pytest.fixture
def thread() -> Iterator[RendererThread]:
    made = RendererThread("mine")
    yield made
    made.stop()


async def test_a_call_returns_from_another_thread(thread: RendererThread) -> None:
    async def name() -> str:
        return threading.current_thread().name

    assert await thread.call("dump", name) == "renderer mine"
    assert await asyncio.to_thread(thread.call_blocking, "dump", name) == "renderer mine"


async def test_what_a_call_raises(thread: RendererThread) -> None:
    async def fail(error: BaseException) -> None:
        raise error

    for known in (OSError(28, "No space left on device"), KernelError("writing", 1, "x"), TimeoutError("own")):
        with pytest.raises(type(known)) as found:
            await thread.call("flush", lambda known=known: fail(known))
        assert str(found.value) == str(known)
    with pytest.raises(RendererError, match="renderer mine: flush raised ValueError: no"):
        await thread.call("flush", lambda: fail(ValueError("no")))
    with pytest.raises(RendererError, match="flush raised SystemExit: 3"):
        await thread.call("flush", lambda: fail(SystemExit(3)))
    with pytest.raises(RendererError, match="flush raised TypeError"):
        await thread.call("flush", lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(RendererError, match="flush raised RecursionError"):
        await thread.call("flush", lambda: recurse(sys.getrecursionlimit() + 1))


async def recurse(depth: int) -> None:
    if depth:
        await recurse(depth - 1)


async def test_a_call_that_waits_is_cancelled(thread: RendererThread) -> None:
    async def wait() -> None:
        await asyncio.sleep(60)

    async def quick() -> int:
        return 1

    with pytest.raises(RendererError, match=r"resync did not return within 0\.1 s"):
        await thread.call("resync", wait, 0.1)
    assert await thread.call("resync", quick) == 1


async def test_a_call_that_blocks_keeps_only_its_thread(thread: RendererThread) -> None:
    go_on = threading.Event()

    async def block() -> None:
        go_on.wait(30)

    async def quick() -> int:
        return 1

    with pytest.raises(RendererError, match="did not return within"):
        await thread.call("resync", block, 0.1)
    with pytest.raises(RendererError, match="renderer mine: resync has not returned"):
        await thread.call("resync", quick, 0.1)
    with pytest.raises(RendererError, match="has not returned"):
        thread.call_blocking("close", quick)
    go_on.set()
    assert await thread.call("resync", quick) == 1
