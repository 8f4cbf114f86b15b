"""`explain` without an agent: the dry programs over the pinned maps, as an agent that is gone has left them. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec.structs import replace

from lbagent.bpf.compiler import builder
from lbagent.bpf.hooks import AttachPointKind
from lbagent.bpf.load import attach, generation
from lbagent.bpf.run.dry_programs import DryPrograms
from lbagent.errors import AgentUnreachable, NotFound, Refused
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import LB_CONFIG
from lbagent.maps.pinned_maps import PinnedMaps
from lbagent.maps.pins import pin_dir
from lbagent.model.service import RESTORED, ServiceName
from lbagent.model.state import State
from lbagent.net.netlink import NetworkWatcher
from lbagent.net.snapshot import NodeNetwork
from lbagent.targets.bpf import explainer
from lbagent.targets.bpf.explainer import Scene
from lbagent.targets.bpf.restore import restore
from lbagent.targets.bpf.retention import restored_state
from lbagent.targets.explanation import ExplainRequest, Explanation

Explain = Callable[[ExplainRequest], list[Explanation]]


@contextmanager
def left_explainer(bpffs: str, node_name: str, name_of: Callable[[int, str], str | None]) -> Iterator[Explain]:
    """Yield what explains packets; the programs are loaded for a second, and unloaded at the end.

    Raises AgentUnreachable where nothing is pinned, Refused under programs of another version, KernelError.
    """
    root = pin_dir(bpffs)
    with ExitStack() as opened:
        try:
            config = opened.enter_context(PinnedMaps(bpffs)).settings_record()
            maps = opened.enter_context(KernelMaps.open(bpffs, create=False))
        except NotFound as error:
            raise AgentUnreachable(f"no agent answers, and {error}") from None
        reply_ports = generation.pinned_reply_ports(root)
        if not config or reply_ports is None:
            raise AgentUnreachable(f"no agent answers, and no programs are under {root}")
        if len(config) != LB_CONFIG.size:
            raise Refused(
                "the programs in force are of another version of lbagent: use that version, or start an agent"
            )
        programs = DryPrograms.load(builder.ensure_dry_artifact(), maps.fds, config)
        opened.callback(programs.close)
        state = _named(restored_state(restore(maps).shadow, node_name), name_of)
        scene = Scene(
            programs, maps, state, state.generation, asyncio.run(_network()), _hooks(root), reply_ports,
        )  # fmt: skip

        def explain(request: ExplainRequest) -> list[Explanation]:
            answers = explainer.explain(scene, request.packets, request.device, request.hook)
            for answer in answers:
                if answer.service == str(RESTORED):
                    answer.service = None
            return answers

        yield explain


def _named(state: State, name_of: Callable[[int, str], str | None]) -> State:
    """Return the State of the maps with the names of Services, as far as they are known."""
    services = []
    for svc in state.services:
        name = name_of(0, svc.frontend.with_protocol())
        namespace, _, rest = (name or "").partition("/")
        services.append(replace(svc, name=ServiceName(namespace, rest)) if rest else svc)
    return State(state.generation, tuple(services))


def _hooks(root: Path) -> dict[str, list[str]]:
    """Return the words of the hooks that devices have, by device."""
    found: dict[str, list[str]] = {}
    for each in attach.attached(root):
        if each.target.kind is AttachPointKind.DEVICE:
            found.setdefault(each.target.name, []).append(str(each.hook))
    return found


async def _network() -> NodeNetwork:
    """Return links, addresses and routes as they are now. Raises KernelError."""
    watcher = NetworkWatcher()
    try:
        return await watcher.start()
    finally:
        watcher.close()
