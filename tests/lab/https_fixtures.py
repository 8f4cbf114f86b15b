"""HTTPS servers inside the test's own network namespace, in the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.lab.https_server import Server, make_certificate
from tests.lab.netns import Namespace


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate."""
    folder = tmp_path_factory.mktemp("certificate")
    make_certificate(folder)
    return folder


@pytest.fixture
def alone() -> Iterator[None]:
    """This test runs in its own network namespace."""
    namespace = Namespace("apiunit")
    try:
        with namespace.entered():
            yield
    finally:
        namespace.delete()


@pytest.fixture
async def server(alone: None, certificate: Path) -> AsyncIterator[Server]:
    """A server on the loopback."""
    made = Server("a", certificate, "127.0.0.1", 6443)
    await made.look()
    following = asyncio.create_task(made.follow())
    yield made
    following.cancel()
