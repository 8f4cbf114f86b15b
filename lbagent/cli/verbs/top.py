"""`lbagent top`: which services, backends and drops have traffic now."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from lbagent.api.client import AgentClient
from lbagent.cli.options import Duration, form_option, socket_option
from lbagent.errors import AgentUnreachable, ConfigError, LbError, TimedOut

if TYPE_CHECKING:
    import curses
    import queue

    from lbagent.cli.top_screen import TopScreen

Row = dict[str, Any]
LEAST_INTERVAL_S = 0.1
ASK_S = 5.0
TICK_MS = 100  # how often the screen looks for new values


@click.command()
@click.option(
    "--interval", type=Duration(), default=2.0, show_default=True, metavar="SECONDS", help="Time of one measurement."
)
@click.option("--batch", is_flag=True, help="Print each measurement, for scripts; no terminal is needed.")
@click.option("-n", "count", type=click.IntRange(1), metavar="N", help="With --batch: end after N measurements.")
@socket_option
@form_option("text", "json", text="With --batch: tables, or one JSON object per line.")
def top(interval: float, batch: bool, count: int | None, socket: str, form: str) -> None:
    """Show which services, backends and drops have traffic, the busiest first.

    PPS: packets, BPS: bits, NEW/S: flows that began, each in a second; `-`: not counted. FLOWS: live flows by the last sweep.

    Keys: s services, b backends, d drops; < and > choose the column to sort by, / filters, p pauses, q ends. While the agent
    is away, one sentence is shown; it continues when the agent is back.
    """
    if interval < LEAST_INTERVAL_S:
        raise ConfigError(f"--interval: at least {LEAST_INTERVAL_S:g} s")
    if not batch and (count is not None or form != "text"):
        raise ConfigError("-n and -o are for --batch; give it, too")
    client = AgentClient(socket, ASK_S)
    first = client.summary(rows=0)
    if batch:
        _print(client, first, interval, count, form)
    else:
        _show(client, first, interval)


def _print(client: AgentClient, before: Row, interval: float, count: int | None, form: str) -> None:
    from lbagent.cli.top_screen import COLUMNS, table, total_text
    from lbagent.cli.traffic_rates import rates

    done, is_away = 0, False
    while count is None or done < count:
        time.sleep(interval)
        try:
            now = client.summary(rows=0)
        except (AgentUnreachable, TimedOut) as error:
            if not is_away:
                click.echo(f"{error}; waiting for it", err=True)
            is_away = True
            continue
        is_away = False
        found, before, done = rates(before, now), now, done + 1
        if form == "json":
            click.echo(json.dumps(found, ensure_ascii=False))
            continue
        lines = [total_text(found)]
        for view in COLUMNS:
            lines += ["", *table(view, found)]
        click.echo("\n".join([*lines, ""]))


def _show(client: AgentClient, first: Row, interval: float) -> None:
    import curses
    import locale
    import signal
    from contextlib import suppress

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("top needs a terminal; --batch needs none")
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")  # curses writes the characters of the locale
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the terminal is restored on the way
    try:
        curses.wrapper(_run, client, first, interval)
    except curses.error as error:
        raise LbError(f"this terminal cannot show it: {error}; --batch needs none") from None


def _run(window: curses.window, client: AgentClient, first: Row, interval: float) -> None:
    """Draw until q; a thread measures, so that keys are never late."""
    import curses
    import queue
    import threading
    from contextlib import suppress

    from lbagent.cli.top_screen import TopScreen

    with suppress(curses.error):  # a terminal without a hidden cursor
        curses.curs_set(0)
    window.timeout(TICK_MS)
    screen, found = TopScreen(), queue.SimpleQueue[Row | str]()
    threading.Thread(target=_measure, args=(client, first, interval, found), daemon=True).start()
    while not screen.is_over:
        _draw(window, screen)
        try:
            char = window.get_wch()
        except curses.error:  # no key in this time
            char = 0
        if isinstance(char, str):
            screen.key(char)
        elif char == curses.KEY_BACKSPACE:
            screen.key("\b")
        _take(screen, found)


def _measure(client: AgentClient, before: Row, interval: float, found: queue.SimpleQueue[Row | str]) -> None:
    """Put rates, or one sentence while the agent is away."""
    from lbagent.cli.traffic_rates import rates

    while True:
        time.sleep(interval)
        try:
            now = client.summary(rows=0)
        except LbError as error:
            found.put(f"{error}; waiting for it")
            continue
        found.put(rates(before, now))
        before = now


def _take(screen: TopScreen, found: queue.SimpleQueue[Row | str]) -> None:
    while not found.empty():
        value = found.get()
        if isinstance(value, str):
            screen.trouble = value
        else:
            screen.take(value)


def _draw(window: curses.window, screen: TopScreen) -> None:
    import curses
    from contextlib import suppress

    height, width = window.getmaxyx()
    window.erase()
    for number, line in enumerate(screen.lines(width, height)):
        with suppress(curses.error):  # the terminal became smaller meanwhile
            window.addstr(number, 0, line, curses.A_REVERSE if number == 2 else curses.A_NORMAL)
    window.refresh()
