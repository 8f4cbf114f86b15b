"""The rows of local redirects: one of scope INTERNAL for what is inside, and at an address without a Service one for outside.

A row for what is inside is there as long as its policy is, so that a connection keeps its row while the Pods come and go.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.backend import Backend, BackendState
from lbagent.model.flags import ServiceFlags, SvcFlagParam
from lbagent.model.select import EndpointInfo, endpoint_state, filtered_state
from lbagent.model.service import SVC, ServiceName, SVCType
from lbagent.resolve.build_context import BuildContext
from lbagent.resolve.local_redirects import Redirect


class RedirectGroup(NamedTuple):
    """The Pods of a redirect as backends: those that take new flows, and others whose connections go on.

    `waiting` are the addresses of Pods that are left out unless they have an entry.
    """

    selectable: tuple[Backend, ...]
    slotless: tuple[Backend, ...]
    waiting: tuple[L3n4Addr, ...]


def redirect_group(redirect: Redirect, context: BuildContext) -> RedirectGroup:
    """Return the backends of a redirect.

    Connections to a Pod that is not ready go on, as its process may still run. Datagrams do not: what takes its place gets them.
    """
    selectable: list[Backend] = []
    slotless: list[Backend] = []
    waiting: list[L3n4Addr] = []
    for info in redirect.endpoints:
        if endpoint_state(info) is BackendState.ACTIVE:
            selectable.append(_backend(info, BackendState.ACTIVE, context))
        elif info.ready or info.address.protocol is not L4Type.UDP:
            waiting.append(info.address)
            if context.is_served and context.is_served(info.address):
                slotless.append(_backend(info, filtered_state(info), context))
    return RedirectGroup(tuple(selectable), tuple(slotless), tuple(waiting))


def redirect_row(
    redirect: Redirect, group: RedirectGroup, frontend: L3n4Addr, name: ServiceName, *, port_name: str, created: float
) -> SVC:
    """Return the row for what is inside. Without a Pod it drops: only a policy with `drops_when_empty` has such a row."""
    skips = bool(redirect.skipping)
    flags = ServiceFlags.from_param(
        SvcFlagParam(
            SVCType.LOCAL_REDIRECT,
            is_routable=True,
            check_source_range=skips,
            source_range_deny=skips,
            two_scopes=True,
        )
    )
    return SVC(
        frontend.with_scope(Scope.INTERNAL),
        name=name,
        port_name=port_name,
        type=SVCType.LOCAL_REDIRECT,
        selectable=group.selectable,
        slotless=group.slotless,
        source_ranges=redirect.skipping,
        source_ranges_deny=skips,
        check_source_range=skips,
        no_local_backend=not group.selectable,
        flags=flags,
        created=created,
    )


def rows_of_address(
    redirect: Redirect, frontend: L3n4Addr, context: BuildContext
) -> tuple[tuple[SVC, SVC], tuple[L3n4Addr, ...]]:
    """Return the rows at an address without a Service, and the addresses that wait for an entry."""
    policy = redirect.policy
    group = redirect_group(redirect, context)
    name = ServiceName(policy.namespace, policy.name)
    passing = SVC(
        frontend,
        name=name,
        type=SVCType.LOCAL_REDIRECT,
        flags=ServiceFlags.from_param(SvcFlagParam(SVCType.LOCAL_REDIRECT, loopback_hostport=True, two_scopes=True)),
        loopback_hostport=True,
        created=policy.created,
    )
    if group.selectable or policy.drops_when_empty:
        inside = redirect_row(redirect, group, frontend, name, port_name="", created=policy.created)
    else:
        inside = replace(passing, frontend=frontend.with_scope(Scope.INTERNAL), slotless=group.slotless)
    return (passing, inside), group.waiting


def _backend(info: EndpointInfo, state: BackendState, context: BuildContext) -> Backend:
    node_name, local = context.node_of(info)
    return Backend(0, info.address, state, weight=info.weight, node_name=node_name, zone=info.zone, local=local)
