"""`lbagent bpf`: build the programs. Needs BCC (apt: python3-bpfcc); running them does not."""

from __future__ import annotations

import click

from lbagent.errors import ConfigError


@click.group()
def bpf() -> None:
    """The BPF programs."""


@bpf.command()
@click.option("-o", "--output", default="", metavar="FILE", help="Where to write (default: the packaged place).")
@click.option("--force", is_flag=True, help="Compile even what did not change.")
@click.option("--check", is_flag=True, help="Show every program to the verifier (root).")
def build(output: str, force: bool, check: bool) -> int:
    """Compile all programs into one artifact."""
    from pathlib import Path

    from lbagent.bpf.build.builder import build as compile_all
    from lbagent.bpf.build.c_source import ARTIFACT_PATH

    path = Path(output) if output else ARTIFACT_PATH
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"-o {path}: {'is a folder' if path.is_dir() else 'no such folder'}; nothing was built")
    made = compile_all(path, force=force)
    click.echo(f"{path}: {len(made.programs)} programs, BCC {made.bcc}, {made.arch}")
    if check:
        from lbagent.bpf.load.verifier_report import check_programs

        return check_programs(made)
    return 0
