"""Find the router: by its URL, or by SSDP; then by NAT-PMP. Of several, the default route's comes first."""

from __future__ import annotations

import logging
from ipaddress import ip_address

from lbagent.cloud.edge.edge_config import EdgeConfig, Protocol
from lbagent.cloud.edge.protocols.default_route import default_router, source_address
from lbagent.cloud.edge.protocols.nat_pmp_gateway import open_nat_pmp
from lbagent.cloud.edge.protocols.port_mapping import Gateway, GatewayFailure, GatewayRefusal, GatewayUnreachable
from lbagent.cloud.edge.protocols.ssdp import SsdpAnswer, search
from lbagent.cloud.edge.protocols.upnp_gateway import open_gateway
from lbagent.http.http_client import Url

log = logging.getLogger(__name__)
MAX_TRIED = 8  # most devices whose descriptions are read


async def find_gateway(config: EdgeConfig, before: str = "") -> Gateway:
    """Return the router to use. Raises GatewayUnreachable with a reason for each protocol.

    `before`: only the protocols that precede this one are tried.
    """
    problems = []
    for protocol in config.protocols:
        if protocol == before:
            break
        try:
            return await (_upnp(config) if protocol is Protocol.UPNP else _nat_pmp(config))
        except (GatewayUnreachable, GatewayFailure, GatewayRefusal) as error:
            problems.append(f"{protocol}: {error}")
    raise GatewayUnreachable(f"no gateway: {'; '.join(problems)}")


async def _upnp(config: EdgeConfig) -> Gateway:
    if config.gateway is not None:
        return await open_gateway(config.gateway)
    router = default_router()
    try:
        answers = await search(source_address(router) if router else "")
    except OSError as error:
        raise GatewayUnreachable(f"the search failed: {error.strerror or error}") from None
    if not answers:
        raise GatewayUnreachable("no device answers the search")
    locations = ordered(answers, router)
    problems = []
    for location in locations[:MAX_TRIED]:
        try:
            found = await open_gateway(location)
        except GatewayUnreachable as error:
            problems.append(str(error))
            continue
        if len({each.host for each in locations}) > 1:
            others = ", ".join(sorted({each.host for each in locations} - {location.host}))
            log.warning("several gateways answer; one is used", extra={"gateway": location.host, "others": others})
        return found
    raise GatewayUnreachable("; ".join(problems))


def ordered(answers: list[SsdpAnswer], router: str) -> list[Url]:
    """Return the descriptions, each once: of the default route's router first, the others by address."""
    locations = {answer.location for answer in answers}
    return sorted(locations, key=lambda url: (url.host != router, ip_address(url.host).packed, str(url)))


async def _nat_pmp(config: EdgeConfig) -> Gateway:
    host = config.gateway.host if config.gateway is not None else default_router()
    if not host:
        raise GatewayUnreachable("there is no default route")
    return await open_nat_pmp(host)
