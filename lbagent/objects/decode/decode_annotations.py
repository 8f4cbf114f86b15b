"""Read lbagent's annotations (or labels) of a Service, and Cilium's words for the same. docs/operations.md has the table."""

from __future__ import annotations

from lbagent.model.flow_rules import FlowRules
from lbagent.model.service import Algorithm, SVCNatPolicy
from lbagent.objects.decode import annotation_words, decode_flow_rules
from lbagent.objects.decode.report import Report, annotation
from lbagent.objects.decode.wire import Meta
from lbagent.textfile.field_path import FieldPath

_ALGORITHMS = {word.value: word for word in Algorithm}
_FORWARDING = {"snat": False, "dsr": True}
_NAT = {"none": SVCNatPolicy.NONE, "nat46": SVCNatPolicy.NAT46, "nat64": SVCNatPolicy.NAT64}
# Values that are valid and that the programs do not implement yet -> what happens instead.
_NOT_YET = {
    "dsr": "packets are forwarded with SNAT",
    "nat46": "only backends of the frontend's own IP family are used",
    "nat64": "only backends of the frontend's own IP family are used",
}
_ANNOTATIONS = (
    annotation_words.OF_POOLS
    | decode_flow_rules.WORDS
    | {
        "algorithm",
        "forwarding-mode",
        "nat-policy",
        "l7-proxy-port",
        "port-range",
        "source-ranges-policy",
        "stale-flows",
        "tier-min",
        "source-ranges-for",
        "exclude",
        "health-check",
        "health-check-from",
    }
)


def decode_annotations(meta: Meta, report: Report) -> tuple[Algorithm, bool, SVCNatPolicy]:
    """Return the algorithm, whether forwarding is DSR, and the NAT policy; report our annotations without effect."""
    algorithm, dsr, nat = Algorithm.RANDOM, False, SVCNatPolicy.NONE
    report.check_annotations(meta, _ANNOTATIONS)
    if found := annotation(meta, "algorithm", "lb-algorithm"):
        algorithm = report.choice(found[0], found[1].lower(), _ALGORITHMS, "random", "algorithm")
        _say_not_yet(found[0], algorithm.value, report)
    if found := annotation(meta, "forwarding-mode"):
        dsr = report.choice(found[0], found[1].lower(), _FORWARDING, "snat", "dsr")
        _say_not_yet(found[0], "dsr" if dsr else "", report)
    if found := annotation(meta, "nat-policy"):
        nat = report.choice(found[0], found[1].lower(), _NAT, "none", "nat_policy")
        _say_not_yet(found[0], nat.value.lower(), report)
    return algorithm, dsr, nat


def decode_l7_port(meta: Meta, report: Report, *, affinity: bool, rules: FlowRules) -> int:
    """Return the port of the L7 proxy, 0 for none: the master entry has it in place of the affinity time-out."""
    found = annotation(meta, "l7-proxy-port")
    if found is None:
        return 0
    path, text = found
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else -1
    port = report.port(path, number, "no L7 proxy is used") if number >= 0 else _no_port(found, report)
    if not port and (port := report.last_value("l7_proxy_port") or 0):
        report.say_kept(path, f"port {port}")
    if port and affinity:
        report.error(path, "cannot go with sessionAffinity", "it is ignored")
        return 0
    if port:
        _say_unlimited(path, rules, report)
    return port


def _say_unlimited(path: FieldPath, rules: FlowRules, report: Report) -> None:
    """Warn of rules about backends: the proxy selects them."""
    of_backends = {"max-flows-per-backend": rules.max_flows_per_backend, "slow-start": rules.slow_start_s}
    if given := ", ".join(word for word, value in of_backends.items() if value):
        report.warn(path, f"{given}: no effect with an L7 proxy", "the proxy selects the backends")


def _say_not_yet(path: FieldPath, word: str, report: Report) -> None:
    """Warn of a valid annotation without effect."""
    if instead := _NOT_YET.get(word):
        report.warn(path, f"{word} has no effect yet", instead)


def _no_port(found: tuple[FieldPath, str], report: Report) -> int:
    report.error(found[0], f"{found[1]!r} is not a port of 1-65535", "no L7 proxy is used")
    return 0
