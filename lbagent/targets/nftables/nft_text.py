"""The forms of a rule set for people and nft: text for `nft -f`, JSON, a difference as one transaction. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lbagent.targets.nftables.chains import DSTNAT, SRCNAT
from lbagent.targets.nftables.map_specs import (
    ADDRESS,
    DEVICE,
    MAPS,
    MARKER,
    PORT,
    PROTOCOL,
    Element,
    Field,
    MapSpec,
    Value,
)
from lbagent.targets.nftables.rule_set import Elements, RuleSet, RuleSetDiff
from lbagent.targets.nftables.statements import Chain

_PER_COMMAND = 500  # elements of a command


def table_text(rules: RuleSet) -> str:
    """Return the whole table for `nft -f`, which replaces the one that is there: the same rule set gives the same bytes."""
    table = rules.settings.table
    lines = [f"table inet {table}", f"delete table inet {table}", f"table inet {table} {{", f'\tcomment "{MARKER}"']
    elements = rules.elements()
    for name, spec in MAPS.items():
        lines += ["", f"\t{spec.word} {name} {{", *(f"\t\t{line}" for line in spec.declaration())]
        lines += [f"\t\t{line}" for line in _elements(spec, elements[name])]
        lines.append("\t}")
    for name, chain in rules.chains().items():
        lines += ["", f"\tchain {name} {{", *(f"\t\t{line}" for line in chain_lines(chain)), "\t}"]
    return "\n".join([*lines, "}", ""])


def _elements(spec: MapSpec, elements: Mapping[bytes, Element]) -> Iterator[str]:
    if elements:
        words = [spec.element_text(key, element) for key, element in _sorted(spec, elements)]
        yield "elements = { " + (",\n\t\t\t     ".join(words)) + " }"


def _sorted(spec: MapSpec, elements: Mapping[bytes, Element]) -> list[tuple[bytes, Element]]:
    return sorted(elements.items(), key=lambda item: spec.order(item[0]))


def chain_lines(chain: Chain) -> Iterator[str]:
    """Yield the lines of a chain as nft lists them."""
    if chain.hook:
        yield f"type nat hook {chain.hook} priority {priority_text(chain.hook, chain.priority)}; policy accept;"
    for rule in chain.rules:
        yield rule.text


def priority_text(hook: str, priority: int) -> str:
    """Return a priority as nft lists it: by a name, where the hook knows it."""
    word, base = {"prerouting": ("dstnat", DSTNAT), "postrouting": ("srcnat", SRCNAT)}.get(hook, ("", 0))
    rest = priority - base
    if not word or abs(rest) > 10:
        return str(priority)
    return word + (f" {'+' if rest > 0 else '-'} {abs(rest)}" if rest else "")


def difference_text(table: str, change: RuleSetDiff) -> str:
    """Return a difference for `nft -f`: one transaction."""
    lines = []
    for name, chain in change.new_chains.items():
        lines.append(f"add chain inet {table} {name}")
        lines += [f"add rule inet {table} {name} {rule.text}" for rule in chain.rules]
    lines += _commands("delete", table, change.deleted)
    lines += _commands("add", table, change.added)
    for name in change.gone_chains:
        lines += [f"flush chain inet {table} {name}", f"delete chain inet {table} {name}"]
    return "\n".join([*lines, ""]) if lines else ""


def _commands(word: str, table: str, elements: Elements) -> Iterator[str]:
    for name in MAPS:
        spec = MAPS[name]
        content = _sorted(spec, elements.get(name, {}))
        for at in range(0, len(content), _PER_COMMAND):
            some = content[at : at + _PER_COMMAND]
            words = (spec.key_text(key) if word == "delete" else spec.element_text(key, each) for key, each in some)
            yield f"{word} element inet {table} {name} {{ {', '.join(words)} }}"


# --- JSON ---


def table_json(rules: RuleSet) -> dict[str, Any]:
    """Return the table as libnftables lists it in JSON (libnftables-json(5))."""
    here = {"family": "inet", "table": rules.settings.table}
    out: list[Any] = [{"table": {"family": "inet", "name": rules.settings.table, "comment": MARKER}}]
    elements = rules.elements()
    for name, spec in MAPS.items():
        out.append({spec.word: {**here, "name": name, **_declared(spec), **_listed(spec, elements[name])}})
    chains = rules.chains()
    for name, chain in chains.items():
        hook = {"type": "nat", "hook": chain.hook, "prio": chain.priority, "policy": "accept"} if chain.hook else {}
        out.append({"chain": {**here, "name": name, **hook}})
    for name, chain in chains.items():
        content = [[statement.json for statement in rule.statements] for rule in chain.rules]
        out += [{"rule": {**here, "chain": name, "expr": expressions}} for expressions in content]
    return {"nftables": [{"metainfo": {"json_schema_version": 1}}, *out]}


def _declared(spec: MapSpec) -> dict[str, Any]:
    names = {PROTOCOL: "inet_proto", PORT: "inet_service", DEVICE: "ifname", Field.SLOT: "integer"}
    names[ADDRESS] = f"ipv{spec.family.digit}_addr"
    types = [names[field] for field in spec.key]
    out: dict[str, Any] = {"type": types if len(types) > 1 else types[0]}
    if spec.value is Value.VERDICT:
        out["map"] = "verdict"
    elif spec.value is Value.BACKEND:
        out["map"] = [names[ADDRESS], "inet_service"]
    if spec.dynamic:
        out |= {"size": 1 << 16, "flags": ["timeout", "dynamic"]}
    elif spec.ranges:
        out["flags"] = ["interval"]
    return out


def _listed(spec: MapSpec, elements: Mapping[bytes, Element]) -> dict[str, Any]:
    if not elements:
        return {}
    return {"elem": [_element_json(spec, key, element) for key, element in _sorted(spec, elements)]}


def _element_json(spec: MapSpec, key: bytes, element: Element) -> Any:
    words = [_word(text) for text in spec.key_words(key)]
    found: Any = {"concat": words} if len(words) > 1 else words[0]
    if element.comment:
        found = {"elem": {"val": found, "comment": element.comment}}
    if isinstance(element.value, str):
        word, _, chain = element.value.partition(" ")
        return [found, {word: {"target": chain} if chain else None}]
    if element.value is not None:
        address, _, port = spec.value_text(element.value).partition(" . ")
        return [found, {"concat": [address, int(port)]}]
    return found


def _word(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    address, slash, bits = text.partition("/")
    return {"prefix": {"addr": address, "len": int(bits)}} if slash else text.strip('"')
