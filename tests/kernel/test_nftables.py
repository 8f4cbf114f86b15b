"""Rules that drop packets of conntrack's state invalid: real rulesets, read back from nft in a namespace of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lbagent.kernel.nftables import chains_that_drop_invalid, read_ruleset
from tests.lab.netns import Namespace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed"),
]
READ = "from lbagent.kernel.nftables import *; print(*chains_that_drop_invalid(read_ruleset()), sep='\\n')"


@pytest.fixture(scope="module")
def node() -> Iterator[Namespace]:
    node = Namespace("nft")
    yield node
    node.delete()


def found(node: Namespace, rules: str) -> list[str]:
    subprocess.run(node.command(["nft", "-f", "-"]), input=f"flush ruleset\n{rules}", text=True, check=True)
    done = subprocess.run(node.command([sys.executable, "-c", READ]), capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


FORWARD = "chain forward {{ type filter hook forward priority 0; {}\n }}"


@pytest.mark.parametrize(
    ("rule", "drops"),
    [
        ("ct state invalid drop", True),
        ("ct state invalid counter drop", True),
        ("ct state { invalid, untracked } drop", True),
        ("ct state invalid,new drop", True),
        ("ct state invalid reject", True),
        ("ct state vmap { established : accept, related : accept, invalid : drop }", True),
        ('iifname "eth0" ct state == invalid drop', True),
        ("ct state invalid accept", False),
        ("ct state != invalid drop", False),
        ("ct state established,related accept", False),
        ("ct state invalid counter", False),
        ("ct state vmap { established : accept, invalid : accept }", False),
        ("ip daddr 10.0.0.1 drop", False),
    ],
)
def test_rules(node: Namespace, rule: str, drops: bool) -> None:
    rules = f"table inet filter {{ {FORWARD.format(rule)}\n }}"
    assert found(node, rules) == (["inet filter forward"] if drops else [])


def test_chains_that_forwarded_packets_pass(node: Namespace) -> None:
    """Also one that is jumped to from another one; not those of the node's own sockets."""
    rules = f"""
    table ip mine {{
      chain far {{ ct state invalid drop; }}
      chain near {{ goto far; }}
      {FORWARD.format("jump near")}
      chain unused {{ ct state invalid drop; }}
      chain input {{ type filter hook input priority 0; ct state invalid drop; }}
    }}
    table ip6 six {{ chain early {{ type filter hook prerouting priority -150; ct state invalid drop; }}; }}
    """
    assert found(node, rules) == ["ip mine far", "ip6 six early"]


def test_no_rules(node: Namespace) -> None:
    assert found(node, "") == []
    assert chains_that_drop_invalid({}) == []


def test_without_nft(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_ruleset() is None
