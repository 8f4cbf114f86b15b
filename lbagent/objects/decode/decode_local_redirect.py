"""Read local redirects: LocalRedirectPolicies (lbagent.io/v1alpha1) and CiliumLocalRedirectPolicies (cilium.io/v2).

An object with a fault in its frontend, its selector or its ports is left out whole: a part of it would redirect something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from lbagent.model.address import parse_ip
from lbagent.objects.decode import wire
from lbagent.objects.decode.report import Report, annotation, present, special, text_of
from lbagent.objects.decode.wire import Meta
from lbagent.objects.records import LocalRedirect, RedirectPort
from lbagent.textfile.field_path import FieldPath
from lbagent.value_errors import shown

WHEN_EMPTY = "when-empty"
OF_REDIRECTS = frozenset((WHEN_EMPTY,))
MAX_PORTS = 64
_WHEN_EMPTY = {"original": False, "drop": True}
_LEFT_OUT = "the policy is left out"
_FRONTEND: FieldPath = ("spec", "redirectFrontend")
_BACKEND: FieldPath = ("spec", "redirectBackend")
_SELECTOR: FieldPath = (*_BACKEND, "localEndpointSelector")
_LINK_LOCAL4 = bytes((169, 254))  # what a provider serves there (169.254.169.254) is a usual frontend of a redirect


def decode_local_redirect(
    raw: wire.LocalRedirectPolicy, namespace: str, name: str, report: Report
) -> LocalRedirect | None:
    """Return the LocalRedirectPolicy; None if one of its parts is wrong."""
    return _decode("LocalRedirectPolicy", raw, namespace, name, report)


def decode_cilium_local_redirect(
    raw: wire.LocalRedirectPolicy, namespace: str, name: str, report: Report
) -> LocalRedirect | None:
    """Return the CiliumLocalRedirectPolicy; None if one of its parts is wrong."""
    return _decode("CiliumLocalRedirectPolicy", raw, namespace, name, report)


def _decode(
    kind: str, raw: wire.LocalRedirectPolicy, namespace: str, name: str, report: Report
) -> LocalRedirect | None:
    meta, spec = raw.metadata or Meta(), raw.spec or wire.LocalRedirectSpec()
    report.check_annotations(meta, OF_REDIRECTS)
    found = annotation(meta, WHEN_EMPTY)
    drops = report.choice(found[0], found[1], _WHEN_EMPTY, "original", "drops_when_empty") if found else False
    created = report.timestamp(meta)
    address, service, ports = _frontend(spec.redirectFrontend or wire.RedirectFrontend(), namespace, report)
    backend = spec.redirectBackend or wire.RedirectBackend()
    selector = _selector(backend.localEndpointSelector or wire.LabelSelector(), report)
    targets = _ports((*_BACKEND, "toPorts"), backend.toPorts, report, is_required=True)
    if report.is_faulty(("spec",)):
        return None
    return LocalRedirect(
        kind,
        namespace,
        name,
        report.origin,
        created,
        address,
        service,
        ports,
        MappingProxyType(selector),
        targets,
        bool(spec.skipRedirectFromBackend),
        drops,
    )


def _frontend(
    raw: wire.RedirectFrontend, namespace: str, report: Report
) -> tuple[bytes | None, str, tuple[RedirectPort, ...]]:
    """Return the address or the name of the Service, and the ports."""
    by_address, by_service = raw.addressMatcher, raw.serviceMatcher
    if by_address is not None and by_service is not None:
        report.error((*_FRONTEND, "serviceMatcher"), "addressMatcher is given too; give only one of them", _LEFT_OUT)
    elif by_address is not None:
        path = (*_FRONTEND, "addressMatcher")
        ports = _ports((*path, "toPorts"), by_address.toPorts, report, is_required=True)
        return _address((*path, "ip"), by_address.ip, report), "", ports
    elif by_service is not None:
        path = (*_FRONTEND, "serviceMatcher")
        if not by_service.serviceName:
            report.error((*path, "serviceName"), "the name is missing", _LEFT_OUT)
        if (by_service.namespace or namespace) != namespace:
            problem = f"{shown(by_service.namespace)} is another namespace than the policy's own, {shown(namespace)}"
            report.error((*path, "namespace"), problem, _LEFT_OUT)
        ports = _ports((*path, "toPorts"), by_service.toPorts, report, is_required=False)
        return None, by_service.serviceName or "", ports
    elif not report.is_faulty(_FRONTEND):
        report.error(_FRONTEND, "neither addressMatcher nor serviceMatcher is given", _LEFT_OUT)
    return None, "", ()


def _address(path: FieldPath, text: str | None, report: Report) -> bytes | None:
    try:
        address = parse_ip((text or "").strip())
    except ValueError as error:
        report.error(path, str(error), _LEFT_OUT)
        return None
    if (what := special(address)) and not (len(address) == 4 and address[:2] == _LINK_LOCAL4):
        report.error(path, f"{text} is {what}", _LEFT_OUT)
    return address


def _selector(raw: wire.LabelSelector, report: Report) -> dict[str, str]:
    if raw.matchExpressions:
        report.error((*_SELECTOR, "matchExpressions"), "only matchLabels is possible", _LEFT_OUT)
    if not raw.matchLabels and not report.is_faulty(_SELECTOR):
        report.error((*_SELECTOR, "matchLabels"), "no label is given; it would select every pod", _LEFT_OUT)
    return {str(key): text_of(value) for key, value in (raw.matchLabels or {}).items()}


def _ports(
    path: FieldPath, raw: Sequence[wire.RedirectPort | None] | None, report: Report, *, is_required: bool
) -> tuple[RedirectPort, ...]:
    found: dict[tuple[int, str], RedirectPort] = {}
    for index, entry in present((raw or [])[:MAX_PORTS]):
        at = (*path, index)
        port = _port((*at, "port"), entry.port, report)
        protocol = report.protocol((*at, "protocol"), entry.protocol, _LEFT_OUT)
        if not port or protocol is None:
            continue
        if (port, protocol) in found:
            report.error((*at, "port"), f"{port}/{protocol} is listed twice", _LEFT_OUT)
        found[port, protocol] = RedirectPort(port, protocol, (entry.name or "").lower())
    if len(raw or ()) > MAX_PORTS:
        report.error(path, f"more than {MAX_PORTS} ports", _LEFT_OUT)
    if is_required and not found and not report.is_faulty(path):
        report.error(path, "no port is given", _LEFT_OUT)
    return tuple(found.values())


def _port(path: FieldPath, value: Any, report: Report) -> int:
    """Return a port that is written as a number or, as Cilium's type has it, as a string of digits."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 5:
        value = int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        report.error(path, f"{shown(value)} is not a port of 1-65535", _LEFT_OUT)
        return 0
    return report.port(path, value, _LEFT_OUT)
