"""The tables of docs/operations.md, made from the code: `python -m tests.docs.tables` writes them into the file, `--check` compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lbagent import errors
from lbagent.checks.table import every_check
from lbagent.cli.setting_options import other_name_help
from lbagent.config import RELOADABLE, Option, options
from lbagent.maps.lbmaps import backend_counter, service_counter
from lbagent.maps.reasons import Reason, label
from lbagent.model.state import State
from lbagent.observe import metrics
from lbagent.observe.kube_proxy_metrics import KubeProxySample
from lbagent.observe.metrics import Snapshot, SourceSample
from lbagent.sync.sync_record import SyncRecord

FILE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SOURCE = Path(__file__).resolve().parents[2] / "lbagent" / "maps" / "reasons.py"
CODES = {
    0: "ok", 1: "failed, or something was refused, is failing or differs", 2: "usage: a flag, key, argument or configuration is wrong",
    3: "not found: service, backend, device", 4: "refused: invalid transition, last backend without --yes, another agent, conflict", 5: "no agent answers on the socket",
    6: "timed out", 77: "this kernel, or this version, lacks what is needed",
}  # fmt: skip


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def option_rows() -> Iterator[tuple[str, ...]]:
    for option in options():
        note = " Reloadable." if option.field in RELOADABLE else ""
        yield f"`{option.flag}`", f"`{option.env}`", value_of(option), option.help + note
        for name in option.names[1:]:
            yield f"`{name.flag}`", f"`{name.env}`", "-", other_name_help(option)


def value_of(option: Option) -> str:
    if option.choices:
        return " ".join(f"**`{word}`**" if word == option.default else f"`{word}`" for word in option.choices)
    if option.kind == "switch":
        return f"`{str(option.default).lower()}`"
    if option.kind == "list" and option.default:
        return f"`{','.join(option.default)}`"
    unit = f" {option.unit}" if option.unit else ""
    return f"`{option.default}`{unit}" if option.default not in ("", ()) else "-"


def reason_rows() -> Iterator[tuple[str, ...]]:
    """Take each reason's meaning from the comment beside its number."""
    said = dict(re.findall(r"^    ([A-Z_]+) = \d+(?:  # (.*))?$", SOURCE.read_text(), re.MULTILINE))
    for reason in Reason:
        if reason:
            yield str(int(reason)), f"`{label(reason)}`", said[reason.name]


def metric_rows() -> Iterator[tuple[str, ...]]:
    full = Snapshot(
        version="1", ready=True, state=State(), services={service_counter(1): (0, 0)}, backends={backend_counter(1): (0, 0)},
        live_flows={1: 1}, draining={"b": 1}, maps={"m": (0, 1)}, sources=(SourceSample("s", True, 0, 0),), devices={"d": True}, conditions={"c": 1}, reasons={label(Reason.FWD_NEW): (0, 0)},
        kube_proxy=KubeProxySample(SyncRecord(), {("healthz", 200): 1, ("livez", 200): 1}),
        announced={("10.0.0.1", "l2"): True},
        takeovers=0,
    )  # fmt: skip
    for family in metrics.families(full):
        yield f"`{family.name}`", family.kind, family.help


def doctor_rows() -> Iterator[tuple[str, ...]]:
    for check in every_check():
        if check.when.offline:
            yield f"`{check.name}`", check.level.value, "yes" if check.when.running else "", check.looks_at


def code_rows() -> Iterator[tuple[str, ...]]:
    used: dict[int, list[str]] = {code: [] for code in CODES}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.LbError):
            used[kind.exit_code].append(kind.__name__)
    assert used.keys() == CODES.keys()
    for code, text in CODES.items():
        yield str(code), text


TABLES = {
    "options": lambda: table(("flag", "environment", "default", "meaning"), option_rows()),
    "reasons": lambda: table(("nr", "reason", "meaning"), reason_rows()),
    "metrics": lambda: table(("metric", "type", "meaning"), metric_rows()),
    "doctor": lambda: table(("check", "level", "condition", "looks at"), doctor_rows()),
    "codes": lambda: table(("code", "meaning"), code_rows()),
}


def written(text: str) -> str:
    """Return the document with every table as the code says."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main(arguments: Sequence[str]) -> int:
    """Write the tables, or with --check only compare them."""
    text = FILE.read_text()
    if arguments == ["--check"]:
        if is_old := written(text) != text:
            print(f"docs/{FILE.name}: a table is not that of the code: python -m tests.docs.tables")
        return int(is_old)
    FILE.write_text(written(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
