"""`lbagent bpf`: build the programs. Needs BCC (apt: python3-bpfcc); running them does not."""

from __future__ import annotations

import click

from lbagent.errors import ConfigError


@click.group()
def bpf() -> None:
    """Build the BPF programs."""


@bpf.command()
@click.option("-o", "--output", default="", metavar="FILE", help="File to write (default: the one in the package).")
@click.option("--force", is_flag=True, help="Compile also units that did not change.")
@click.option("--check", is_flag=True, help="Load every program once and print the verifier's figures (needs root).")
def build(output: str, force: bool, check: bool) -> int:
    """Compile all programs into one file, the artifact, and without -o also those of `explain` and of `capture`. Needs BCC."""
    from pathlib import Path

    from lbagent.bpf.compiler.builder import build as compile_all
    from lbagent.bpf.compiler.c_source import ARTIFACT_PATH, ARTIFACTS

    path = Path(output) if output else ARTIFACT_PATH
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"-o {path}: {'is a folder' if path.is_dir() else 'no such folder'}; nothing was built")
    made = compile_all(path, force=force)
    click.echo(f"{path}: {len(made.programs)} programs, BCC {made.bcc}, {made.arch}")
    built = [made]
    for other, units in () if output else ARTIFACTS.items():
        if other != ARTIFACT_PATH:
            built.append(compile_all(other, force=force, units=units))
            click.echo(f"{other}: {len(built[-1].programs)} programs")
    if check:
        from lbagent.bpf.load.verifier_report import check_programs

        return max(map(check_programs, built))
    return 0
