"""`lbagent apilb`: load balancers in front of API servers: what pool files say, and what is done about it on hosts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Callable
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
NO_CHANGES = "No changes required"
FILES = "File of pools, - for stdin; repeatable: all files are one document (config.yaml and state.yaml)."
STATE = "The state file (default: state.yaml beside the first file)."
MODE = "Serve every instance so, whatever the files say."


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
    """Return `2/3`; nothing when no server's health is known."""
    known = [each["up"] for each in servers if each["up"] is not None]
    return f"{sum(known)}/{len(servers)}" if known else ""


def files_options(command: F, *, locked: bool = False) -> F:
    """Add [POOL], -f, --strict, --mode and --state; the command gets `files`, `pool` and `state_path`. Faults end it with 2.

    `locked`: no other such command reads or writes the state meanwhile.
    """

    @click.argument("pool", default="")
    @click.option("-f", "--file", "paths", multiple=True, required=True, metavar="FILE", help=FILES)
    @click.option("--state", "state_path", default="", metavar="FILE", help=STATE)
    @click.option("--strict", is_flag=True, help="Refuse keys that are not known; else they are warned of.")
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

    Faults of files: one a line, `FILE:LINE: FIELD: what is wrong`, exit code 2.
    """


@apilb.command(short_help="What was understood of the files.")
@files_options
@form_option("table", "wide", "json", "yaml", "name")
def show(files: PoolFiles, pool: str, state_path: str, form: str) -> None:
    """Show each instance with what it inherits and the defaults. Passwords and keys are not shown."""
    del state_path
    from lbagent.apilb.deployment import PoolChoice
    from lbagent.apilb.deployment_rows import instance_row

    rows = [instance_row(each) for each in PoolChoice(files, pool).instances]
    output.show(INSTANCES, rows, Style(form))


@apilb.command(short_help="The file of an instance: haproxy.cfg, or what the agent reads.")
@files_options
@click.option("--instance", "name", default="", metavar="NAME", help="Of this instance (default: of all).")
def render(files: PoolFiles, pool: str, state_path: str, name: str) -> None:
    """Print haproxy.cfg, which `haproxy -c -f` reads; of an instance of native mode the pool file that its host's agent reads.

    Each of several instances is behind a line that names it. `--mode haproxy` prints haproxy.cfg for all.
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


@apilb.command(short_help="What apply would do.")
@files_options
@click.option("--offline", is_flag=True, help="Reach no host: take the state's word for what is there.")
@form_option("table", "json", "yaml")
def plan(files: PoolFiles, pool: str, state_path: str, offline: bool, form: str) -> int:
    """Compare what is wanted with what is there.

    Exit code 0: nothing to do. 1: something. 2: wrong input. 4: a file that is not lbagent's is in the way. 5: a host or its
    container runtime is not reached; the others are shown.
    """
    from lbagent.apilb.deployment import Deployment

    deployment = Deployment(files, state_path=state_path, pool=pool)
    if not offline:
        asyncio.run(deployment.observe())
    steps = deployment.plan(offline=offline)
    _say_errors(deployment)
    _show_plan(steps, form, quiet=bool(deployment.errors))
    return deployment.exit_code or int(any(step.changes for step in steps))


@apilb.command(short_help="Make it so.")
@locked_files_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--pull", is_flag=True, help="Pull an image that is missing on a host.")
def apply(files: PoolFiles, pool: str, state_path: str, yes: bool, pull: bool) -> int:
    """Show the plan, ask, and carry it out. The state is written after each step; a second apply ends what a first one began.

    Exit code 0: all is as wanted. 1: something failed, other steps are done. Where nothing was done, 2: wrong input; 3: an
    image is missing; 4: no terminal to ask on and no --yes, a name is taken, or another apply is at work; 5: a host or its
    runtime is not reached.
    """
    from lbagent.apilb.deployment import Deployment

    return _carry_out(Deployment(files, state_path=state_path, pool=pool), yes=yes, pull=pull)


@apilb.command(short_help="Remove what was deployed.")
@locked_files_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def destroy(files: PoolFiles, pool: str, state_path: str, yes: bool) -> int:
    """Remove every container and file that is deployed. Exit codes are those of apply."""
    from lbagent.apilb.deployment import Deployment

    return _carry_out(Deployment(files, state_path=state_path, pool=pool, remove=True), yes=yes)


@apilb.command(short_help="The state, as found on the hosts.")
@files_options
@click.option("--offline", is_flag=True, help="Reach no host: print what the state says.")
def export(files: PoolFiles, pool: str, state_path: str, offline: bool) -> int:
    """Print `state:`, to be kept or put behind the configuration. No password and no key is in it.

    Exit code 5: a host is not reached; of it is printed what the state says.
    """
    from lbagent.apilb.deployment import Deployment

    deployment = Deployment(files, state_path=state_path, pool=pool)
    if not offline:
        asyncio.run(deployment.observe())
        deployment.take_as_found()
    _say_errors(deployment)
    click.echo(deployment.export(), nl=False)
    return deployment.exit_code


@apilb.command(short_help="Containers and servers: running, up, down.")
@files_options
@socket_option
@form_option("table", "json", "yaml", "name")
def status(files: PoolFiles, pool: str, state_path: str, socket: str, form: str) -> int:
    """Show what each host has, and which servers are up, as HAProxy says; of native mode on this host, as its agent says.

    Exit code 5: a host is not reached; its error is its status.
    """
    from lbagent.apilb.deployment import Deployment, exit_code
    from lbagent.apilb.deployment_rows import status_row

    deployment = Deployment(files, state_path=state_path, pool=pool)
    health = asyncio.run(_health(deployment))
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
    """Return the servers of each instance that an agent of this host serves; nothing, and why, when none says so."""
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


def _carry_out(deployment: Deployment, *, yes: bool, pull: bool = False) -> int:
    asyncio.run(deployment.observe())
    steps = deployment.plan()
    _say_errors(deployment)
    said = len(deployment.errors)
    deployment.refresh(steps)
    _show_plan(steps, "table", quiet=bool(said))
    if any(step.changes for step in steps):
        if not yes:
            _ask()
        deployment.save()  # what cannot be written is said before anything is done
        asyncio.run(deployment.carry_out(steps, _say_step, pull=pull))
        _say_errors(deployment, said)
    else:
        deployment.save()
    return deployment.exit_code


def _ask() -> None:
    """Raise Refused unless a person says yes."""
    if not sys.stdin.isatty():
        raise Refused("there is no terminal to ask on; nothing was changed; give --yes to change the hosts")
    if not click.confirm("Change the hosts?", err=True):
        raise Refused("nothing was changed")


def _show_plan(steps: list[Step], form: str, *, quiet: bool) -> None:
    """Print the steps; `quiet`: do not say that there is nothing to do, for it is not known."""
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
