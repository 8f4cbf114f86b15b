"""Generated Services."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.errors import ConfigError
from lbagent.resolve import Options, resolve
from lbagent.sources.synthetic import SyntheticSource, parse_synthetic


async def test_synthetic_services():
    source = SyntheticSource(3, 2)
    told = []
    task = asyncio.create_task(source.run(told.append))
    await source.synced.wait()
    rows = resolve(source.snapshot(), Options("n")).state
    assert [svc.frontend.with_protocol() for svc in rows.services if not svc.wildcard] == [
        "10.96.0.1:80/TCP", "10.96.0.2:80/TCP", "10.96.0.3:80/TCP"
    ]  # fmt: skip
    assert len(rows.backends) == 6
    source.change(1)
    assert [len(change.new.endpoints) for change in told[-1]] == [1]
    source.change(1)
    assert source.snapshot() == SyntheticSource(3, 2).snapshot()
    task.cancel()


@pytest.mark.parametrize("text", ["", "10", "a:b", "10:", "70000:1", "60000:1000", "-1:5"])
def test_synthetic_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match="--synthetic"):
        parse_synthetic(text)


def test_synthetic_sizes():
    assert parse_synthetic("10000:10") == (10000, 10)
