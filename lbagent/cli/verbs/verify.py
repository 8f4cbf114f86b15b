"""`lbagent verify`: whether each data plane is what the objects require."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from lbagent.api.client import AgentClient
from lbagent.cli.options import form_option, pins_option, socket_option
from lbagent.cli.output import document
from lbagent.cli.setting_options import RULE_SETTINGS, from_flags, setting_options
from lbagent.errors import AgentUnreachable, ConfigError, LbError, NotFound, TimedOut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lbagent.model.state import State
    from lbagent.render.renderer_types import Difference

SETTLE_S = 1.0  # an entry that changes while the maps are read one after another looks inconsistent: read again
BPF = "bpf"
KUBE_PROXY = "kube-proxy"  # its own rules, not a data plane of lbagent
Row = dict[str, Any]  # DifferenceRow (api/plane_differences.py)


@click.command()
@socket_option
@pins_option
@click.option(
    "--renderer",
    default="",
    metavar="NAME",
    help="Only this data plane (default: each one that is there), or kube-proxy: its own nftables rules.",
)
@click.option(
    "-f",
    "--manifests",
    "folder",
    default="",
    metavar="DIR|FILE|-",
    help="Compare with these manifests; this needs no agent. - reads stdin.",
)
@click.option(
    "--node",
    default="",
    envvar="LBAGENT_NODE_NAME",
    metavar="NAME",
    help="Name of the node, with -f (default: the host's).",
)
@click.option(
    "--node-ip",
    multiple=True,
    metavar="IP",
    help="Address for NodePorts, with -f (repeatable; default: those of the Node object).",
)
@click.option(
    "--api",
    "afresh",
    is_flag=True,
    help="Have the agent list the objects of its sources again, and compare the data planes with these.",
)
@click.option("--repair", is_flag=True, help="Have what differs written again.")
@form_option("text", "json", "yaml")
@setting_options(*RULE_SETTINGS)
def verify(
    *,
    socket: str,
    bpffs: str,
    renderer: str,
    folder: str,
    node: str,
    node_ip: tuple[str, ...],
    afresh: bool,
    repair: bool,
    form: str,
    **flags: Any,
) -> int:
    """Name each object that a data plane does not have as it must.

    The agent compares each of its data planes with what it wrote. BPF maps are also read here, with or without an agent: slots,
    backends, path records, tables, the prefilter. With -f the maps, or the table of nftables, are compared with manifests; the
    settings below must be those of the agent. kube-proxy's rules (mode nftables) are compared with the agent's objects, also those
    of `agent --shadow`, or with manifests.

    With --api the agent lists its objects again, from the Kubernetes API or its folder, resolves them, and compares the result with
    each data plane. This finds a watch that stopped silently, and a stale backend. A change that is on its way is no difference.

    Exit code 0: nothing differs, with --repair everything is repaired. 1: at least one difference is named. 2: wrong usage. 3: no
    such data plane, or no table of kube-proxy. 5: this needs an agent, and none answers. 6: with --api, the API does not answer.
    """
    if afresh:
        if folder or renderer == KUBE_PROXY:
            raise ConfigError("--api compares with the agent's sources: leave out -f, and --renderer kube-proxy")
        if renderer:
            _require_known(renderer)
        rows, is_good = AgentClient(socket).object_differences(renderer, repair=repair), True
    elif folder:
        given = {"node_name": node, "node_ip": node_ip, "renderer": (renderer,) if renderer else (), "bpffs": bpffs}
        rows, is_good = _of_manifests(folder, {**flags, **given}, repair=repair)
    else:
        rows, is_good = _of_agent(AgentClient(socket), renderer, bpffs, repair=repair), True
    if form != "text":
        document(rows, form)
    else:
        for row in rows:
            click.echo(f"{row['renderer']}: {row['difference']}{' (repaired)' if row['repaired'] else ''}")
    return int(not is_good or not all(row["repaired"] for row in rows))


# --- with an agent, or the maps alone ---


def _of_agent(client: AgentClient, renderer: str, bpffs: str, *, repair: bool) -> list[Row]:
    """Return the differences that the agent finds, and those within the maps. Raises LbError."""
    if renderer and renderer != BPF:
        if renderer != KUBE_PROXY:
            _require_known(renderer)
        return _asked(client, renderer, repair=repair)
    pins = _pins_of(client)
    if repair or (renderer and pins == ""):
        return _asked(client, renderer, repair=repair)
    try:
        rows = _inconsistencies(bpffs)
    except LbError:
        if pins != "":
            raise
        return _asked(client, renderer)  # the agent's data planes have no maps
    if pins and os.path.realpath(pins) == os.path.realpath(bpffs):
        rows = _with_services(client, rows) + _found_by(client, renderer)
    return rows


def _require_known(renderer: str) -> None:
    """Raise NotFound for a name that no data plane has."""
    from lbagent.render.renderer_names import names

    if renderer not in names():
        raise NotFound(f"unknown renderer {renderer!r}; there are {', '.join(names())}")


def _asked(client: AgentClient, renderer: str, *, repair: bool = False) -> list[Row]:
    rows: list[Row] = client.repair(renderer) if repair else client.differences(renderer)
    return rows


def _inconsistencies(bpffs: str) -> list[Row]:
    """Return what does not fit together in the maps, read twice. Raises NotFound, KernelError."""
    from lbagent.maps.consistency import inconsistencies, without_master
    from lbagent.maps.kernel_maps import KernelMaps

    with KernelMaps.open(bpffs, create=False) as kernel:
        found = [*inconsistencies(kernel), *without_master(kernel)]
        if found:
            time.sleep(SETTLE_S)
            again = {*inconsistencies(kernel), *without_master(kernel)}
            found = [each for each in found if each in again]
    return [
        _row(
            BPF,
            "missing" if each.is_missing else "differs",
            each.text,
            None,
            each.frontend.with_protocol() if each.frontend is not None else None,
        )
        for each in found
    ]


def _with_services(client: AgentClient, rows: list[Row]) -> list[Row]:
    """Name the Services of frontends, which the maps do not have, as long as the agent answers."""
    if not rows:
        return []
    try:
        names = {row["frontend"]: f"{row['namespace']}/{row['name']}" for row in client.services()}
    except LbError:
        return rows
    return [
        _row(row["renderer"], row["kind"], row["detail"], names.get(row["frontend"]), row["frontend"]) for row in rows
    ]


def _row(
    renderer: str, kind: str, detail: str, service: str | None, frontend: str | None, *, repaired: bool = False
) -> Row:
    subject = " ".join(part for part in (service, frontend) if part)
    return {
        "renderer": renderer,
        "service": service,
        "frontend": frontend,
        "kind": kind,
        "detail": detail,
        "repaired": repaired,
        "difference": ": ".join(part for part in (subject, kind, detail) if part),
    }


def _pins_of(client: AgentClient) -> str | None:
    """Return the --bpffs of the agent that answers; '' where its data plane has none, None without an agent."""
    try:
        return str(client.status()["bpffs"])
    except LbError:
        return None


def _found_by(client: AgentClient, renderer: str) -> list[Row]:
    """Return what the agent finds; nothing when it does not answer any more, or has no state in force yet. Raises LbError."""
    try:
        return _asked(client, renderer)
    except (AgentUnreachable, TimedOut):
        return []


# --- with manifests ---


def _of_manifests(folder: str, given: dict[str, Any], *, repair: bool) -> tuple[list[Row], bool]:
    """Return the differences from manifests, and whether all of these were good. Raises ConfigError, NotFound, KernelError."""
    from msgspec.structs import replace

    from lbagent.agent.layer_settings import resolve_options
    from lbagent.sources.folder.resolve_path import resolve_path
    from lbagent.targets.offline_planes import Compared, compared_all, compared_named

    renderer = given["renderer"][0] if given["renderer"] else ""
    if renderer == KUBE_PROXY:
        from lbagent.api.plane_differences import CANNOT_REPAIR

        del given["renderer"]
        if repair:
            raise ConfigError(CANNOT_REPAIR)
    elif renderer:
        _require_known(renderer.partition("=")[0])
    config = from_flags({key: value for key, value in given.items() if value})
    objects = resolve_path(folder, replace(resolve_options(config), keep_existing=False))
    for message in objects.messages:
        click.echo(str(message), err=True)
    try:
        if renderer == KUBE_PROXY:
            every: Sequence[Compared] = [Compared(KUBE_PROXY, _of_kube_proxy(objects.state), ())]
        else:
            compare = compared_named if renderer else compared_all
            every = compare(config, objects.state, repair=repair)
    except OSError as error:
        raise LbError(f"{renderer or 'nftables'}: {error.strerror or error}") from error
    rows = [
        _row(done.name, each.kind, each.detail, each.service, each.frontend, repaired=repair and each not in done.left)
        for done in every
        for each in done.found
    ]
    return rows, all(message.warning for message in objects.messages)


def _of_kube_proxy(state: State) -> Sequence[Difference]:
    """Return in what kube-proxy's rules differ from a State. Raises NoProxyTable, OSError."""
    import asyncio

    from lbagent.targets.kube_proxy.compared import compared_with

    return asyncio.run(compared_with(lambda: state))
