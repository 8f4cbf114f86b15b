"""The description of a UPnP device: its services for port mappings, and their control URLs.

Source: UPnP Device Architecture 1.1, 2.3; InternetGatewayDevice:1 and :2.
"""

from __future__ import annotations

from urllib.parse import urljoin

from msgspec import Struct

from lbagent.cloud.edge.protocols.bounded_xml import BadXml, parse_xml
from lbagent.http.http_client import Url, parse_url

SERVICE_TYPES = tuple(
    f"urn:schemas-upnp-org:service:{name}"
    for name in ("WANIPConnection:2", "WANIPConnection:1", "WANPPPConnection:1")  # in order of preference
)


class WanConnection(Struct, frozen=True):
    """A service for port mappings."""

    service_type: str
    control: Url


class DeviceDescription(Struct, frozen=True):
    """A device's name, and its services for port mappings."""

    name: str
    connections: tuple[WanConnection, ...]


def read_description(data: bytes, url: Url) -> DeviceDescription:
    """Parse the description from a URL. Raises ValueError, also for a control URL of another host."""
    try:
        root = parse_xml(data)
    except BadXml as error:
        raise ValueError(f"its description is not valid XML: {error}") from None
    base = root.text_of("URLBase") or str(url)
    found: dict[tuple[str, str], WanConnection] = {}
    for service in root.every("service"):
        kind = service.text_of("serviceType")
        if kind in SERVICE_TYPES:
            control = _control_url(base, service.text_of("controlURL"), url)
            found.setdefault((kind, str(control)), WanConnection(kind, control))
    if not found:
        raise ValueError("its description names no WANIPConnection or WANPPPConnection")
    device = root.child("device")
    name = device.text_of("friendlyName") if device else ""
    ordered = sorted(found.values(), key=lambda each: SERVICE_TYPES.index(each.service_type))
    return DeviceDescription("".join(filter(str.isprintable, name))[:64], tuple(ordered))


def _control_url(base: str, text: str, url: Url) -> Url:
    try:
        found = parse_url(urljoin(base, text))
    except ValueError as error:
        raise ValueError(f"its control URL: {error}") from None
    if found.host != url.host:
        raise ValueError(f"its control URL {found} is of another host")
    return found
