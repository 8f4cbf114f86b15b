"""The firewall rules of this network namespace as nft lists them: which of them drop packets that conntrack calls invalid.

Read by `nft -j list ruleset`. It omits rules of iptables-legacy, and the matches of iptables-nft rules. Source:
libnftables-json(5).
"""

from __future__ import annotations

import json
import subprocess
from typing import Any, NamedTuple

TIMEOUT_S = 5.0
_FORWARDING = frozenset({"prerouting", "forward"})  # hooks of packets that this node receives or forwards
_DROPS = frozenset({"drop", "reject"})


class Chain(NamedTuple):
    """A chain by its full name."""

    family: str
    table: str
    name: str

    def __str__(self) -> str:
        """Return it in the form of `nft list chain`."""
        return f"{self.family} {self.table} {self.name}"


def read_ruleset() -> dict[str, Any] | None:
    """Return nft's output; None where nft is not installed, has no permission, or does not answer."""
    try:
        done = subprocess.run(
            ["nft", "-j", "list", "ruleset"],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def chains_that_drop_invalid(ruleset: dict[str, Any]) -> list[Chain]:
    """Return the chains on the path of packets through this node in which a rule drops `ct state invalid`."""
    reached: set[Chain] = set()
    jumps: dict[Chain, set[Chain]] = {}
    dropping: list[Chain] = []
    for item in ruleset.get("nftables", ()):
        if (chain := item.get("chain")) and chain.get("hook") in _FORWARDING:
            reached.add(Chain(chain["family"], chain["table"], chain["name"]))
        elif rule := item.get("rule"):
            here = Chain(rule["family"], rule["table"], rule["chain"])
            statements = rule.get("expr", ())
            jumps.setdefault(here, set()).update(here._replace(name=name) for name in _targets(statements))
            if here not in dropping and _drops_invalid(statements):
                dropping.append(here)
    todo = list(reached)
    while todo:
        new = jumps.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
    return [chain for chain in dropping if chain in reached]


def _targets(statements: Any) -> set[str]:
    """Return the chains to which a rule jumps or goes."""
    found = set()
    for statement in statements:
        for verdict in (statement, *(value for _, value in _mapped(statement))):
            for word in ("jump", "goto"):
                if isinstance(verdict, dict) and isinstance(verdict.get(word), dict):
                    found.add(str(verdict[word].get("target")))
    return found


def _mapped(statement: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of a verdict map (`ct state vmap { invalid : drop }`); none for another statement."""
    data = statement.get("vmap", {}).get("data", {}) if isinstance(statement, dict) else {}
    pairs = data.get("set", ()) if isinstance(data, dict) else ()
    return [(pair[0], pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2]


def _drops_invalid(statements: Any) -> bool:
    matched = drops = False
    for statement in statements:
        if match := statement.get("match"):
            matched |= _is_state(match.get("left")) and match.get("op") != "!=" and _names_invalid(match.get("right"))
        drops |= not _DROPS.isdisjoint(statement)
        if _is_state(statement.get("vmap", {}).get("key")):
            for key, verdict in _mapped(statement):
                if _names_invalid(key) and not _DROPS.isdisjoint(verdict):
                    return True
    return matched and drops


def _is_state(left: Any) -> bool:
    return isinstance(left, dict) and isinstance(left.get("ct"), dict) and left["ct"].get("key") == "state"


def _names_invalid(right: Any) -> bool:
    """Return whether a state, a list or a set of states holds `invalid`."""
    if isinstance(right, dict):
        right = right.get("set", ())
    return right == "invalid" or (isinstance(right, list) and "invalid" in right)
