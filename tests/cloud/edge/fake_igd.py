"""A UPnP router in memory, only for faults that a real one does not produce on demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from lbagent.cloud.edge.protocols.bounded_xml import parse_xml

SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
DESCRIPTION = (
    "<root><device><friendlyName>Fake</friendlyName><serviceList><service>"
    f"<serviceType>{SERVICE}</serviceType><controlURL>/ctl</controlURL></service></serviceList></device></root>"
)
FAULT = "<e><UPnPError><errorCode>{}</errorCode><errorDescription>x</errorDescription></UPnPError></e>"
Key = tuple[str, str]  # protocol, external port


class FakeIgd:
    """`errors`: action -> code, or a sequence of codes (0: success); `raw`: action -> bytes in place of an answer."""

    def __init__(self) -> None:
        self.table: dict[Key, dict[str, str]] = {}
        self.calls: Counter[str] = Counter()
        self.added: list[dict[str, str]] = []
        self.errors: dict[str, int | list[int]] = {}
        self.raw: dict[str, bytes] = {}
        self.hold: set[str] = set()  # actions that are never answered
        self.address = "203.0.113.5"
        self.lease_s: int | None = None  # listed in place of the requested ones
        self.description_length = 100
        self.no_leases = 0  # the error for a lease with an end

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/desc.xml"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            action = head.split("#")[1].split('"')[0] if "#" in head else "description"
            self.calls[action] += 1
            if action in self.hold:
                await asyncio.sleep(60)
            writer.write(self.raw.get(action) or self._answer(action, body))
        finally:
            writer.close()

    def _answer(self, action: str, body: bytes) -> bytes:
        if action == "description":
            return _http(200, DESCRIPTION)
        code = self.errors.get(action, 0)
        if isinstance(code, list):
            code = code.pop(0) if code else 0
        arguments = {} if code else {each.name: each.text for each in next(parse_xml(body).every(action)).children}
        found = code or getattr(self, f"_{action}")(arguments)
        if isinstance(found, int) and found:
            return _http(500, FAULT.format(found))
        inside = "".join(f"<{name}>{text}</{name}>" for name, text in (found or {}).items())
        return _http(200, f"<e><{action}Response>{inside}</{action}Response></e>")

    def _GetExternalIPAddress(self, _arguments: dict[str, str]) -> Any:
        return {"NewExternalIPAddress": self.address}

    def _AddPortMapping(self, arguments: dict[str, str]) -> Any:
        if self.no_leases and arguments["NewLeaseDuration"] != "0":
            return self.no_leases
        self.added.append(arguments)
        kept = dict(arguments)
        kept["NewPortMappingDescription"] = kept["NewPortMappingDescription"][: self.description_length]
        if self.lease_s is not None:
            kept["NewLeaseDuration"] = str(self.lease_s)
        self.table[arguments["NewProtocol"], arguments["NewExternalPort"]] = kept
        return {}

    def _DeletePortMapping(self, arguments: dict[str, str]) -> Any:
        return {} if self.table.pop((arguments["NewProtocol"], arguments["NewExternalPort"]), None) else 714

    def _GetSpecificPortMappingEntry(self, arguments: dict[str, str]) -> Any:
        return self.table.get((arguments["NewProtocol"], arguments["NewExternalPort"])) or 714

    def _GetGenericPortMappingEntry(self, arguments: dict[str, str]) -> Any:
        index = int(arguments["NewPortMappingIndex"])
        return list(self.table.values())[index] if index < len(self.table) else 713


def _http(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
