"""`python -m lbagent.bpf.compiler`: compile what changed. `lbagent bpf build` can do more, and needs click."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from lbagent.bpf.compiler.builder import build
from lbagent.bpf.compiler.c_source import ARTIFACTS
from lbagent.errors import LbError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of `python -m lbagent.bpf.compiler`."""
    parser = argparse.ArgumentParser(prog="python -m lbagent.bpf.compiler", description="compile the BPF programs")
    parser.add_argument("--force", action="store_true", help="compile also units that did not change")
    options = parser.parse_args(arguments)
    try:
        for path, units in ARTIFACTS.items():
            made = build(path, force=options.force, units=units)
            print(f"{path}: {len(made.programs)} programs, BCC {made.bcc}, {made.arch}")
    except LbError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
