"""`plan` of random folders against the rules written down a second time (reference.py), and the shape of every dump."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from random import Random

import pytest

from lbagent.targets.bpf.dry_run import dry_run
from tests.resolve.random_folders import Folder
from tests.resolve.reference import Reference

MASTER = re.compile(r"SVC: ID=(\d+) ADDR=(\S+) SLOT=0 LBALG=(\S+) AFFTimeout=(\d+) COUNT=(\d+) QCOUNT=(\d+) FLAGS=(.+)")
SLOT = re.compile(r"SVC: ID=(\d+) ADDR=(\S+) SLOT=(\d+) BEID=(\d+) COUNT=0 QCOUNT=0 FLAGS=(.+)")
KINDS = ["SVC", "BE", "REV", "AFF", "MAGLEV", "SRCRANGE"]


def without_ids(lines: list[str]) -> set[str]:
    """Return a dump in the form of reference.py; asserts the invariants of every dump."""
    kinds = [line.partition(":")[0] for line in lines]
    assert kinds == sorted(kinds, key=KINDS.index)
    backends = dict(re.match(r"BE: ID=(\d+) ADDR=(\S+)", line).groups() for line in lines if line.startswith("BE"))
    masters = {found[1]: found for line in lines if (found := MASTER.fullmatch(line)) and found[1] != "0"}
    out = {
        f"WILD {found[2].removesuffix(':0/ANY')}"
        for line in lines
        if (found := MASTER.fullmatch(line)) and found[1] == "0"
    }
    slots = defaultdict(dict)
    for line in lines:
        if found := SLOT.fullmatch(line):
            assert (found[2], found[5]) == masters[found[1]].group(2, 7)  # address and flags of its master
            slots[found[1]][int(found[3])] = backends[found[4]]
    for ident, found in masters.items():
        _, frontend, algorithm, affinity, count, others, flags = found.groups()
        assert sorted(slots[ident]) == list(range(1, int(count) + int(others) + 1))
        at = " ".join(slots[ident][number] for number in sorted(slots[ident]))
        out.add(f"{frontend} {algorithm} {affinity} {count}+{others} {flags} -> {at}")
    frontends = {ident: found[2] for ident, found in masters.items()}
    reverse = dict(re.match(r"REV: ID=(\d+) ADDR=(\S+)", line).groups() for line in lines if line.startswith("REV"))
    assert reverse == {ident: re.sub(r"/[A-Z]+(/i)?$", "", frontend) for ident, frontend in frontends.items()}
    return out | {each for line in lines if (each := _small(line, frontends, backends))}


def _small(line: str, frontends: dict[str, str], backends: dict[str, str]) -> str:
    kind, _, rest = line.partition(": ")
    found = dict(re.findall(r"(\w+)=(\[[^]]*\]\S*|\S+)", rest))
    if kind == "BE":
        return f"BE {found['ADDR']} {found['STATE']}"
    if kind == "AFF":
        return f"AFF {frontends[found['ID']]} {backends[found['BEID']]}"
    if kind == "SRCRANGE":
        return f"SRC {frontends[found['ID']]} {found['CIDR']}"
    if kind != "MAGLEV":
        return ""
    entries = re.findall(r"(\d+)\((\d+)\)", found["INNER"])
    assert [int(ident) for ident, _ in entries] == sorted(int(ident) for ident, _ in entries)
    shares = [int(share) for _, share in entries]
    assert sum(shares) == 251
    assert max(shares) - min(shares) <= 1
    return f"MAGLEV {frontends[found['ID']]} {' '.join(sorted(backends[ident] for ident, _ in entries))}"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_what_the_rules_say(seed: int, tmp_path) -> None:
    random = Random(seed)
    for _ in range(30):
        objects = Folder(random).objects
        node_ips = random.choice(((), (), ("192.168.7.7", "fd00:7::7")))
        (tmp_path / "a.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        found = dry_run(str(tmp_path), node_name="n1", node_ips=node_ips, maglev_table_size=251)
        lines, refused = Reference(objects, "n1", node_ips).run()
        assert without_ids(found.lines) == lines, json.dumps(objects)
        assert found.exit_code == int(refused), [str(message) for message in found.messages]
