"""Read the rules of a Service about its new flows: limits, their answer, slow start."""

from __future__ import annotations

from lbagent.model.flow_rules import NO_RULES, FlowRules
from lbagent.model.service import Algorithm
from lbagent.objects.decode.report import Report, annotation
from lbagent.objects.decode.wire import Meta

WORDS = frozenset(("max-flows", "max-flows-per-backend", "new-flow-rate", "over-limit", "slow-start"))
MAX_NUMBER = 1_000_000_000
MAX_SLOW_START_S = 3600
_OVER_LIMIT = {"drop": False, "reject": True}


def decode_flow_rules(meta: Meta, algorithm: Algorithm, report: Report) -> FlowRules:
    """Return the rules; a value that is none leaves the limit as it was, or out."""
    over = annotation(meta, "over-limit")
    last: FlowRules = report.last_value("flow_rules") or NO_RULES
    rules = FlowRules(
        max_flows=_number(meta, "max-flows", last.max_flows, report),
        max_flows_per_backend=_number(meta, "max-flows-per-backend", last.max_flows_per_backend, report),
        new_flow_rate=_number(meta, "new-flow-rate", last.new_flow_rate, report),
        slow_start_s=_number(meta, "slow-start", last.slow_start_s, report, MAX_SLOW_START_S),
        reject=_is_rejected(over[0], over[1], last, report) if over else False,
    )
    if rules.slow_start_s and algorithm is Algorithm.MAGLEV and (found := annotation(meta, "slow-start")):
        instead = "a new backend gets its whole share at once: nodes would choose different backends"
        report.warn(found[0], "slow-start has no effect with the algorithm maglev", instead)
    return rules


def _number(meta: Meta, word: str, last: int, report: Report, highest: int = MAX_NUMBER) -> int:
    found = annotation(meta, word)
    if found is None:
        return 0
    path, text = found
    if text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= highest:
        return int(text)
    report.error(path, f"{text!r} is not a number of 1-{highest}", "it is ignored")
    if last:
        report.say_kept(path, str(last))
    return last


def _is_rejected(path: tuple[str | int, ...], text: str, last: FlowRules, report: Report) -> bool:
    word = text.lower()
    if word in _OVER_LIMIT:
        return _OVER_LIMIT[word]
    report.error(path, f"unknown value {text!r}; one of drop, reject is possible", "drop is used")
    if last.reject:
        report.say_kept(path, "reject")
    return last.reject
