"""The output of a demo: titles, bars, ticks. Colours only on a terminal."""

from __future__ import annotations

import os
import pty
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.agent import Agent

BAR = 40  # characters of the longest bar
COLOURS = sys.stdout.isatty()
INDENT = " " * 9
WIDTH = shutil.get_terminal_size().columns if COLOURS else 0  # a terminal would wrap tables; a file gets them in full
TEXT_WIDTH = 80
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def paint(text: str, code: str) -> str:
    """Return the text in a colour, if there are any."""
    return f"\033[{code}m{text}\033[0m" if COLOURS else text


def lines_of_terminal(terminal: int) -> Iterator[str]:
    """Yield each line that a program writes to a terminal; a line that it writes again only where the text is another."""
    rest, shown = "", ""
    while True:
        try:
            text = os.read(terminal, 4096)
        except OSError:  # EIO: the program has closed its end
            break
        *lines, rest = re.split(r"[\r\n]+", rest + ESCAPE.sub("", text.decode(errors="replace")))
        for line in lines:
            if line and line != shown:
                yield line
                shown = line


class Show:
    """Prints the demo and stores the failed claims."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.chapter = 0
        self.untrue: list[str] = []

    def title(self, text: str) -> None:
        """Begin a chapter."""
        self.chapter += 1
        stamp = paint(f"{time.monotonic() - self.start:5.1f} s", "2")
        print(f"\n{stamp}  {paint(f'{self.chapter}. {text}', '1;36')}", flush=True)

    def say(self, text: str) -> None:
        """Print a paragraph."""
        print(textwrap.fill(text, TEXT_WIDTH, initial_indent=INDENT, subsequent_indent=INDENT), flush=True)

    def block(self, text: str) -> None:
        """Print the output of a program, cut where the terminal ends."""
        room = max(20, WIDTH - 4) if WIDTH else None
        for line in text.rstrip().splitlines():
            print(f"  {paint('|', '2')} {line[:room]}")
        sys.stdout.flush()

    def command(self, text: str) -> None:
        """Print a command as a person would type it."""
        print(f"  {paint('$ ' + text, '33')}", flush=True)

    def lbagent(self, agent: Agent, *words: str) -> str:
        """Run lbagent, show the command and its output; return the output."""
        self.command(f"lbagent {' '.join(words)}")
        out = agent.cli(*words).stdout
        self.block(out)
        return out

    def lbagent_on_terminal(self, agent: Agent, *words: str) -> None:
        """Run lbagent on a terminal of its own, and show each text of the line that it writes again and again."""
        self.command(f"lbagent {' '.join(words)}")
        ours, its = pty.openpty()
        with agent.popen(*words, stdin=its, stdout=its, stderr=its) as process:
            os.close(its)
            for line in lines_of_terminal(ours):
                self.block(line)
        os.close(ours)
        self.claim(process.returncode == 0, f"{' '.join(words[:2])} ended", f"exit code {process.returncode}")

    def claim(self, true: object, text: str, why: str = "") -> None:
        """Print a claim with a tick if it is true; the demo ends with an error if a claim is false."""
        if true:
            print(f"{INDENT}{paint('ok', '1;32')}  {text}", flush=True)
            return
        self.untrue.append(text)
        print(f"{INDENT}{paint('NOT TRUE', '1;31')}  {text}" + (f" ({why})" if why else ""), flush=True)

    def bars(self, label: str, counts: Mapping[str, int]) -> None:
        """Print how requests spread over backends."""
        print(f"{INDENT}{label}")
        most = max(counts.values(), default=1) or 1
        width = max([4, *(len(name) + 1 for name in counts)])
        for name in sorted(counts):
            bar = "█" * round(BAR * counts[name] / most)
            print(f"{INDENT}  {name:<{width}}{paint(bar.ljust(BAR), '34')} {counts[name]}")
        sys.stdout.flush()
