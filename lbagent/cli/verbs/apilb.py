"""`lbagent apilb`: load balancers in front of API servers: reads pool files and deploys their instances on hosts."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lbagent.cli import output
from lbagent.cli.options import form_option, socket_option
from lbagent.cli.output import Column, Listing, Row, Style
from lbagent.errors import LbError, Refused

if TYPE_CHECKING:
    from lbagent.apilb.deployment import Deployment
    from lbagent.apilb.files.pool_files import PoolFiles
    from lbagent.apilb.instance import InstanceKey
    from lbagent.apilb.plan_records import Step

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
NO_CHANGES = "No changes required"
FILES = "File of pools, - for stdin; repeatable: all files are one document (config.yaml and state.yaml)."
STATE = "The state file (default: state.yaml beside the first file)."
MODE = "Serve every instance in this mode; overrides the files."


def _place(row: Row) -> str:
    ssh = row["host"].get("ssh")
    return f"{ssh['user']}@{ssh['address']}:{ssh['port']}" if ssh else "direct"


def _key(row: Row) -> object:
    return (row["pool"], row["name"], str(row["host"]))


INSTANCES = Listing(
    (
        Column("POOL", lambda row: row["pool"]),
        Column("NAME", lambda row: row["name"], cut=True),
        Column("MODE", lambda row: row["mode"]),
        Column("BIND", lambda row: row["bindAddress"]),
        Column("SERVERS", lambda row: row["servers"]),
        Column("HOST", _place),
        Column("PATH", lambda row: row["hostConfigPath"], wide=True),
        Column("IMAGE", lambda row: row["image"], wide=True),
        Column("ON MARKED DOWN", lambda row: row["onMarkedDown"], wide=True),
    ),
    name=lambda row: f"{row['pool']}/{row['name']}",
    key=_key,
)
STATUS = Listing(
    (
        Column("POOL", lambda row: row["pool"]),
        Column("NAME", lambda row: row["name"], cut=True),
        Column("HOST", lambda row: row["host"]),
        Column("STATUS", lambda row: row["status"]),
        Column("UP", lambda row: _counted(row["servers"])),
        Column("DOWN", lambda row: [each["address"] for each in row["servers"] if each["up"] is False]),
    ),
    name=lambda row: f"{row['pool']}/{row['name']}",
    key=_key,
)


def _counted(servers: list[Row]) -> str:
    """Return `2/3`; an empty text when no server's health is known."""
    known = [each["up"] for each in servers if each["up"] is not None]
    return f"{sum(known)}/{len(servers)}" if known else ""


def files_options(command: F, *, locked: bool = False) -> F:
    """Add [POOL], -f, --strict, --mode and --state; the command gets `files`, `pool` and `state_path`. Errors in files: exit 2.

    `locked`: no other such command reads or writes the state at the same time.
    """

    @click.argument("pool", default="")
    @click.option("-f", "--file", "paths", multiple=True, required=True, metavar="FILE", help=FILES)
    @click.option("--state", "state_path", default="", metavar="FILE", help=STATE)
    @click.option("--strict", is_flag=True, help="Reject unknown keys; without it, print a warning for each.")
    @click.option("--mode", type=click.Choice(["haproxy", "native"]), help=MODE)
    @functools.wraps(command)
    def wrapped(paths: tuple[str, ...], state_path: str, strict: bool, mode: str | None, **kwargs: Any) -> Any:
        from lbagent.apilb.files.pool_document import PoolFaults
        from lbagent.apilb.files.pool_files import default_state_path, read_pool_files
        from lbagent.apilb.files.state_lock import state_locked
        from lbagent.apilb.instance import Mode

        state_path = state_path or default_state_path(paths)
        chosen = Mode(mode) if mode else None
        with state_locked(state_path) if locked else contextlib.nullcontext():
            try:
                files = read_pool_files(paths, state_path=state_path, strict=strict, mode=chosen, any_file=True)
            except PoolFaults as faults:
                for fault in faults.faults:
                    click.echo(str(fault), err=True)
                return PoolFaults.exit_code
            for warning in files.warnings:
                click.echo(f"warning: {warning}", err=True)
            return command(files=files, state_path=state_path, **kwargs)

    return wrapped  # type: ignore[return-value]


locked_files_options = functools.partial(files_options, locked=True)


@click.group()
def apilb() -> None:
    """Load balancers in front of API servers: HAProxy containers, or BPF programs without a proxy (mode native).

    Errors in files: one per line, `FILE:LINE: FIELD: what is wrong`, exit code 2.
    """


@apilb.command(short_help="Show the instances of the files, with defaults.")
@files_options
@form_option("table", "wide", "json", "yaml", "name")
def show(files: PoolFiles, pool: str, state_path: str, form: str) -> None:
    """Show each instance with what it inherits and the defaults. Passwords and keys are not shown."""
    del state_path
    from lbagent.apilb.deployment import PoolChoice
    from lbagent.apilb.deployment_rows import instance_row

    rows = [instance_row(each) for each in PoolChoice(files, pool).instances]
    output.show(INSTANCES, rows, Style(form))


@apilb.command(short_help="Print the file of an instance: haproxy.cfg, or the agent's pool file.")
@files_options
@click.option("--instance", "name", default="", metavar="NAME", help="Only this instance (default: all).")
def render(files: PoolFiles, pool: str, state_path: str, name: str) -> None:
    """Print haproxy.cfg, which `haproxy -c -f` reads; for an instance of native mode, the pool file that its host's agent reads.

    A line with its name precedes each of several instances. `--mode haproxy` prints haproxy.cfg for all.
    """
    del state_path
    from lbagent.apilb.deployment import PoolChoice
    from lbagent.apilb.haproxy_config import haproxy_config
    from lbagent.apilb.instance import Mode
    from lbagent.apilb.native_file import native_file

    chosen = PoolChoice(files, pool, name).instances
    for each in chosen:
        if len(chosen) > 1:
            click.echo(f"# {each.pool}/{each.name} on {each.host}")
        click.echo(native_file(each) if each.mode is Mode.NATIVE else haproxy_config(each), nl=False)


@apilb.command(short_help="Show what apply would do.")
@files_options
@click.option("--offline", is_flag=True, help="Connect to no host: trust the state file.")
@form_option("table", "json", "yaml")
def plan(files: PoolFiles, pool: str, state_path: str, offline: bool, form: str) -> int:
    """Compare the files with what the hosts have.

    Exit code 0: nothing to do. 1: there are steps. 2: wrong input. 4: a file that is not lbagent's is in the way. 5: a host or its
    container runtime is not reachable; the others are shown.
    """
    from lbagent.apilb.deployment import Deployment

    deployment = Deployment(files, state_path=state_path, pool=pool)
    if not offline:
        _finish(deployment.observe())
    steps = deployment.plan(offline=offline)
    _say_errors(deployment)
    _show_plan(steps, form, quiet=bool(deployment.errors))
    return deployment.exit_code or int(any(step.changes for step in steps))


@apilb.command(short_help="Apply the plan.")
@locked_files_options
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--pull", is_flag=True, help="Pull an image that is missing on a host.")
def apply(files: PoolFiles, pool: str, state_path: str, yes: bool, pull: bool) -> int:
    """Show the plan, ask, and apply it. The state is written after each step; a second apply completes an interrupted one.

    Exit code 0: the hosts match the files. 1: a step failed, the others are done. Where nothing was done, 2: wrong input; 3: an
    image is missing; 4: no terminal to ask on and no --yes, a name is taken, or another apply is running; 5: a host or its
    runtime is not reachable.
    """
    from lbagent.apilb.deployment import Deployment

    return _carry_out(Deployment(files, state_path=state_path, pool=pool), yes=yes, pull=pull)


@apilb.command(short_help="Remove what was deployed.")
@locked_files_options
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
def destroy(files: PoolFiles, pool: str, state_path: str, yes: bool) -> int:
    """Remove every deployed container and file. The exit codes are those of apply."""
    from lbagent.apilb.deployment import Deployment

    return _carry_out(Deployment(files, state_path=state_path, pool=pool, remove=True), yes=yes)


@apilb.command(short_help="Print the state of the hosts.")
@files_options
@click.option("--offline", is_flag=True, help="Connect to no host: print the state file's entries.")
def export(files: PoolFiles, pool: str, state_path: str, offline: bool) -> int:
    """Print `state:`, to keep or to append to the configuration. It has no passwords and no keys.

    Exit code 5: a host is not reachable; its part is printed from the state file.
    """
    from lbagent.apilb.deployment import Deployment

    deployment = Deployment(files, state_path=state_path, pool=pool)
    if not offline:
        _finish(deployment.observe())
        deployment.take_as_found()
    _say_errors(deployment)
    click.echo(deployment.export(), nl=False)
    return deployment.exit_code


@apilb.command(short_help="Show containers and servers: running, up, down.")
@files_options
@socket_option
@form_option("table", "json", "yaml", "name")
def status(files: PoolFiles, pool: str, state_path: str, socket: str, form: str) -> int:
    """Show what each host has, and which servers are up: HAProxy reports it, or this host's agent for native mode.

    Exit code 5: a host is not reachable; its error is its status.
    """
    from lbagent.apilb.deployment import Deployment, exit_code
    from lbagent.apilb.deployment_rows import status_row

    deployment = Deployment(files, state_path=state_path, pool=pool)
    health = _finish(_health(deployment))
    here = [each for each in deployment.wanted if each.is_served_here]
    if here:
        served = _served_here(socket)
        health |= {each.key: served[each.pool, each.name] for each in here if (each.pool, each.name) in served}
    rows = [status_row(pair, deployment.observed[pair.item.key], health) for pair in deployment.pairs]
    output.show(STATUS, rows, Style(form))
    return exit_code(seen for seen in deployment.observed.values() if isinstance(seen, LbError))


async def _health(deployment: Deployment) -> dict[InstanceKey, list[Row]]:
    from lbagent.apilb.hosts import server_health

    await deployment.observe()
    return await server_health(deployment.wanted)


def _served_here(socket: str) -> dict[tuple[str, str], list[Row]]:
    """Return the servers of each instance that an agent of this host serves; nothing, and the reason, when none answers."""
    from lbagent.api.client import AgentClient
    from lbagent.defaults import APILB_SOCKET

    errors = []
    for path in (socket,) if socket else ("", APILB_SOCKET):
        try:
            rows = AgentClient(path).apilb()
        except LbError as error:
            errors.append(error)
        else:
            return {(row["pool"], row["name"]): row["servers"] for row in rows}
    click.echo(f"servers of native mode are not known: {errors[0]}", err=True)
    return {}


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; asyncio takes a third of the time of a start, so it is imported where it is used."""
    import asyncio

    return asyncio.run(work)


def _carry_out(deployment: Deployment, *, yes: bool, pull: bool = False) -> int:
    _finish(deployment.observe())
    steps = deployment.plan()
    _say_errors(deployment)
    said = len(deployment.errors)
    deployment.refresh(steps)
    _show_plan(steps, "table", quiet=bool(said))
    if any(step.changes for step in steps):
        if not yes:
            _ask()
        deployment.save()  # an unwritable state is reported before any step
        _finish(deployment.carry_out(steps, _say_step, pull=pull))
        _say_errors(deployment, said)
    else:
        deployment.save()
    return deployment.exit_code


def _ask() -> None:
    """Raise Refused unless a person confirms."""
    if not sys.stdin.isatty():
        raise Refused("there is no terminal to ask on; nothing was changed; give --yes to change the hosts")
    if not click.confirm("Change the hosts?", err=True):
        raise Refused("nothing was changed")


def _show_plan(steps: list[Step], form: str, *, quiet: bool) -> None:
    """Print the steps; `quiet`: print nothing when there are none, as a host may be missing."""
    from lbagent.apilb.deployment_rows import change_lines, step_row

    rows = [step_row(step) for step in steps]
    if form != "table":
        output.document(rows, form)
        return
    changed = [row for row in rows if row["changes"]]
    for row in changed:
        click.echo(output.printable(f"{row['action']} {row['pool']}/{row['name']} on {row['host']}"))
        for line in change_lines(row):
            click.echo(f"  {output.printable(line)}")
    if not changed and not quiet:
        click.echo(NO_CHANGES)


def _say_step(step: Step, text: str) -> None:
    click.echo(output.printable(f"{step.pool}/{step.name} on {step.host}: {text}"))


def _say_errors(deployment: Deployment, first: int = 0) -> None:
    for error in deployment.errors[first:]:
        click.echo(f"error: {error}", err=True)
