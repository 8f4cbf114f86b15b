"""Settings of the whole suite, for every way to start it."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.rewritten_asserts import rewrite_part
from tests.short_runs import QUICK_EXAMPLES, files_of_run, is_left_out, limit_examples
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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file that is left out: a fifth of the time that `make test-quick` takes to collect."""
    return is_left_out(collection_path, config.option.markexpr) or None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Share between workers the work that is the same for each."""
    rewrite_part(session, files_of_run(session.config, Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """A run that leaves out long tests tries fewer random examples in the others."""
    if "not long" in config.option.markexpr:
        limit_examples(items, QUICK_EXAMPLES)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _log_settings() -> Iterator[None]:
    """A command in a test sets the level and the handlers of the log; the next test gets those of pytest."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = [each for each in root.handlers if each in handlers]
