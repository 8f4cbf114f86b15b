"""Read BackendStates (lbagent.io/v1alpha1): the states that the operator, or a health check, sets for backends."""

from __future__ import annotations

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState, UnknownState
from lbagent.objects.decode import wire
from lbagent.objects.decode.report import Report, seconds
from lbagent.objects.decode.wire import BackendStateSpec, Meta
from lbagent.objects.pod_reference import parse_pod_reference
from lbagent.objects.records import StateOverride

# `terminating` is a Pod's own state: only Kubernetes sets it.
_SETTABLE = (BackendState.ACTIVE, BackendState.MAINTENANCE, BackendState.QUARANTINED)
_LEFT_OUT = "the object is left out"


def decode_backend_state(raw: wire.BackendState, _namespace: str, name: str, report: Report) -> StateOverride | None:
    """Return the BackendState; None if its backends or its state are wrong."""
    spec = raw.spec or BackendStateSpec()
    if spec.address and spec.ref:
        report.error(("spec", "ref"), "spec.address is given too; give only one of them", _LEFT_OUT)
        return None
    if any(("spec", field) in report.wrong_type_fields for field in ("address", "ref")):
        return None  # reported already; the other one may be the last good value
    address = pod = None
    if spec.ref:
        pod = _pod(spec.ref, report)
    else:
        address = _address(spec.address, report)
    state = _state(spec.state, report) if address or pod else None
    if state is None:
        return None
    return StateOverride(
        name, address, state, report.origin, spec.node or "", pod or "", _created(raw.metadata or Meta())
    )


def _created(meta: Meta) -> float:
    """Return creationTimestamp in seconds since 1970; 0 if there is no valid one: no decision depends on it."""
    try:
        return seconds(meta.creationTimestamp or "")
    except ValueError:
        return 0.0


def _address(text: str | None, report: Report) -> L3n4Addr | None:
    try:
        if not text:
            raise ValueError("the address is missing")
        address = L3n4Addr.parse(text)
    except ValueError as error:
        report.error(("spec", "address"), str(error), _LEFT_OUT)
        return None
    return L3n4Addr(address.address, address.port, address.protocol)  # in the external scope, as every backend


def _pod(text: str, report: Report) -> str | None:
    try:
        return parse_pod_reference(text)
    except ValueError as error:
        report.error(("spec", "ref"), str(error), _LEFT_OUT)
        return None


def _state(text: str | None, report: Report) -> BackendState | None:
    try:
        state = BackendState.parse(text or "")
    except UnknownState as error:
        report.error(("spec", "state"), str(error), _LEFT_OUT)
        return None
    if text and state in _SETTABLE:
        return state
    what = f"{text!r} cannot be set" if text else "the state is missing"
    words = ", ".join(word.text for word in _SETTABLE)
    report.error(("spec", "state"), f"{what}; one of {words} is possible", _LEFT_OUT)
    return None
