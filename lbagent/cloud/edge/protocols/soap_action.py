"""UPnP actions as SOAP: the request's body, and the arguments or the error of an answer. Source: UPnP DA 1.1, 3.2."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

from lbagent.cloud.edge.protocols.bounded_xml import BadXml, parse_xml
from lbagent.http.http_client import HttpAnswer

_ENVELOPE = (
    '<?xml version="1.0"?>\r\n'
    '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"'
    ' s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/">'
    '<s:Body><u:{action} xmlns:u="{service}">{arguments}</u:{action}></s:Body></s:Envelope>\r\n'
)


class UpnpError(Exception):
    """The device returned an error of the action. Source of the numbers: WANIPConnection:2, 2.5."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"error {code}" + (f" ({text})" if text else ""))
        self.code = code


def encode_action(service: str, action: str, arguments: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
    """Return header fields and body of a request."""
    inside = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in arguments.items())
    body = _ENVELOPE.format(action=action, service=escape(service), arguments=inside)
    headers = {"Content-Type": 'text/xml; charset="utf-8"', "SOAPAction": f'"{service}#{action}"'}
    return headers, body.encode()


def decode_answer(action: str, answer: HttpAnswer) -> dict[str, str]:
    """Return the arguments of an answer. Raises UpnpError, and ValueError for a text that is not an answer."""
    try:
        root = parse_xml(answer.body)
    except BadXml as error:
        raise ValueError(f"{action}: status {answer.status}, and not valid XML: {error}") from None
    if fault := next(root.every("UPnPError"), None):
        code = fault.text_of("errorCode")
        if not (code.isascii() and code.isdecimal() and len(code) < 6):
            raise ValueError(f"{action}: an error without a number")
        text = "".join(filter(str.isprintable, fault.text_of("errorDescription")))[:80]
        raise UpnpError(int(code), text)
    found = next(root.every(f"{action}Response"), None)
    if answer.status != 200 or found is None:
        raise ValueError(f"{action}: status {answer.status}, and no {action}Response")
    return {each.name: each.text for each in found.children}
