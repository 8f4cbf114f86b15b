"""`make man`: a page for each command, build/man/lbagent[-COMMAND…].1, from click; examples and exit codes as in the reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import lbagent
from tests.docs.tables import CODES
from tools.docs.command_tree import Command, every_command
from tools.docs.examples import EXAMPLES

FOLDER = Path(__file__).resolve().parents[2] / "build" / "man"


def roff(text: str) -> str:
    """Return a text escaped for roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "").replace("…", "...")
    text = text.replace("→", "->").replace("×", "x")
    return "\\&" + text if text.startswith((".", "'")) else text


def page(command: Command) -> str:
    """Return the page of a command."""
    title = "-".join(command.words)
    lines = [f'.TH {title.upper()} 1 "" "lbagent {lbagent.__version__}" "lbagent"']
    lines += [".SH NAME", f"{roff(title)} \\- {roff(command.summary.rstrip('.'))}"]
    lines += [".SH SYNOPSIS", f".B {roff(command.name)}", roff(command.usage)]
    lines.append(".SH DESCRIPTION")
    for paragraph in command.paragraphs:
        lines += [".PP", roff(paragraph)]
    for title_of_section, entries in (
        ("COMMANDS", [(each.words[-1], each.summary) for each in command.commands()]),
        ("OPTIONS", command.options()),
    ):
        if entries:
            lines.append(f".SH {title_of_section}")
        for name, text in entries:
            lines += [".TP", f".B {roff(name)}", roff(text)]
    lines.append(".SH EXAMPLES")
    for line, text in EXAMPLES.get(" ".join(command.words[1:]), ()):
        lines += [".PP", roff(text), ".PP", ".RS 4", ".nf", roff(line), ".fi", ".RE"]
    lines.append(".SH EXIT STATUS")
    for code, text in CODES.items():
        lines += [".TP", f".B {code}", roff(text)]
    lines += [".SH SEE ALSO", ",\n".join(f".BR {roff(name)} (1)" for name in see_also(command))]
    return "\n".join(lines) + "\n"


def see_also(command: Command) -> list[str]:
    """Return the pages of the parent command and of the subcommands."""
    names = ["-".join(command.words[:-1])] if len(command.words) > 1 else []
    return names + ["-".join(each.words) for each in command.commands()] or ["lbagent"]


def pages() -> Iterator[tuple[str, str]]:
    """Yield file name and text of each page."""
    for command in every_command():
        yield "-".join(command.words) + ".1", page(command)


def write(folder: Path) -> list[Path]:
    """Write all pages, and remove those of deleted commands."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, text in pages():
        made.append(folder / name)
        made[-1].write_text(text, encoding="utf-8")
    for old in set(folder.glob("*.1")) - set(made):
        old.unlink()
    return made


if __name__ == "__main__":
    print(f"{len(write(Path(sys.argv[1]) if sys.argv[1:] else FOLDER))} pages in {FOLDER}")
