"""Settings of the whole suite, for every way to start it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.turns import register as pytest_configure  # noqa: F401

# A shell's background job ignores SIGINT, and every child inherits that; tests end commands with it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The shell's variables do not affect the tested commands.
for name in [name for name in os.environ if name.startswith(("LBAGENT_", "PYTHON"))]:
    del os.environ[name]

# The time of an example is not meaningful: the machine may be busy.
if settings.default is not None and settings.default.deadline is not None:
    settings.register_profile("suite", deadline=None)
    settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _log_settings() -> Iterator[None]:
    """A command in a test sets the level and the handlers of the log; the next test gets those of pytest."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = [each for each in root.handlers if each in handlers]
