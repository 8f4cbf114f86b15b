"""What holds for the whole suite, however it was started."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.turns import register as pytest_configure  # noqa: F401

# A shell's background job ignores SIGINT, and every child inherits that; the commands tested are ended by it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing of the shell's changes how the commands tested behave.
for name in [name for name in os.environ if name.startswith(("LBAGENT_", "PYTHON"))]:
    del os.environ[name]

# How long an example takes says nothing of the product; the machine may do other work.
if settings.default is not None and settings.default.deadline is not None:
    settings.register_profile("suite", deadline=None)
    settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _log_settings() -> Iterator[None]:
    """A command that a test calls sets the level and the handlers of the log; the next test has those of pytest."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = [each for each in root.handlers if each in handlers]
