"""Reads scenario files and plays their blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import Sizes
from lbagent.model.address import L3n4Addr, parse_ip
from lbagent.model.backend import BackendState
from lbagent.model.ids import SERVICE_ID_LIMIT, IdAllocator, IdAssigner
from lbagent.model.path_info import PathInfo
from lbagent.objects.pod_reference import is_pod_reference, parse_pod_reference
from lbagent.objects.records import OPERATOR, FailedChecks, ObjectChange, Origin, StateOverride
from lbagent.resolve import InForce, Options, Resolver
from lbagent.sources.folder.manifest_files import ManifestFiles
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.dry_run import dry_run
from lbagent.targets.bpf.plan import plan
from lbagent.targets.bpf.restore import restore
from lbagent.targets.bpf.shadow import Shadow

_BLOCK = re.compile(r"^-- (.+) --$")
MANIFEST = (".yaml", ".yml", ".json")


@dataclass
class Block:
    words: list[str]
    line: int
    text: list[str] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := _BLOCK.match(line):
            found.append(Block(match[1].split(), number))
        elif found:
            found[-1].text.append(line)
        else:
            assert not line or line.startswith("#"), f"line {number}: the story begins with a block"
    return found


@dataclass
class Flags:
    node: str = "n1"
    node_ips: tuple[str, ...] = ()
    table_size: int = 251
    external_ips: bool = True
    external_ip_cidrs: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def flags(words: list[str]) -> Flags:
    out = Flags()
    rest = iter(words)
    for word in rest:
        if word == "--node":
            out.node = next(rest)
        elif word == "--node-ip":
            out.node_ips += (next(rest),)
        elif word == "--maglev-table-size":
            out.table_size = int(next(rest))
        elif word == "--no-external-ips":
            out.external_ips = False
        elif word == "--external-ip-cidr":
            out.external_ip_cidrs += (next(rest),)
        elif word == "--exclude":
            out.exclude += (next(rest),)
        elif word == "only":
            out.only = tuple(rest)
        else:
            raise AssertionError(f"unknown word {word}")
    return out


class Agent:
    """What the agent does with objects, without a kernel: files -> resolve -> ids -> plan -> maps."""

    def __init__(self, folder: Path, given: Flags) -> None:
        self.folder, self.given = folder, given
        self.maps = MemoryMaps(Sizes(backends=1024, maglev_size=given.table_size))
        self.states_set: dict[str, StateOverride] = {}
        self.failed: dict[str, FailedChecks | None] = {}
        self._start(Shadow(self.maps.sizes))

    def _start(self, shadow: Shadow) -> None:
        options = Options(self.given.node, tuple(map(parse_ip, self.given.node_ips)), keep_existing=True)
        self.resolver, self.files, self.shadow = Resolver(options), ManifestFiles(), shadow
        self.book = IdAssigner(IdAllocator(limit=SERVICE_ID_LIMIT), IdAllocator(limit=1024))
        self.resolver.update(ObjectChange("BackendState", name, None, state) for name, state in self.states_set.items())

    def restart(self) -> None:
        found, before = restore(self.maps), self.resolver
        self._start(found.shadow)
        self.book.service_ids.restore(found.service_ids)
        self.book.backend_ids.restore(found.backend_ids)
        self.resolver.set_restored(InForce(frozenset(address for address, _ in found.backend_ids), found.inside_rows()))
        self.resolver.set_previous_owner(before.owner_of)

    def set_state(self, state: str, text: str) -> None:
        pod = parse_pod_reference(text) if is_pod_reference(text) else ""
        address = None if pod else L3n4Addr.parse(text)
        new = StateOverride(text, address, BackendState.parse(state), Origin(source=OPERATOR), pod=pod)
        self.resolver.update([ObjectChange("BackendState", text, self.states_set.get(text), new)])
        self.states_set[text] = new

    def set_failed(self, service: str, texts: list[str]) -> None:
        new = FailedChecks(service, frozenset(map(L3n4Addr.parse, texts))) if texts else None
        self.resolver.update([ObjectChange("FailedChecks", service, self.failed.get(service), new)])
        self.failed[service] = new

    def sync(self) -> None:
        present = {str(path) for path in self.folder.iterdir()}
        changes = []
        for path in sorted(present | set(self.files.paths)):
            changes += self.files.read(path) if path in present else self.files.remove(path)
        self.files.generation += bool(changes)
        self.resolver.update(changes)
        self.resolution = self.resolver.resolve()
        desired = self.book.assign(self.resolution.state)
        result = apply(plan(desired, self.shadow, lambda _: PathInfo()), self.maps, self.shadow)
        assert result.complete, result
        assert check(self.maps) == []

    def messages(self):
        return [*self.files.problems(), *self.resolution.messages]


class Story:
    """Plays the blocks of one file in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent: Agent | None = None

    def play(self, block: Block) -> None:
        first, *rest = block.words
        if not rest and first.endswith(MANIFEST):
            (self.folder / first).write_text("\n".join(block.text) + "\n")
        elif first == "rm":
            (self.folder / rest[0]).unlink()
        elif first == "plan":
            given = flags(rest)
            result = dry_run(
                str(self.folder), node_name=given.node, node_ips=given.node_ips, maglev_table_size=given.table_size,
                external_ips=given.external_ips, external_ip_cidrs=given.external_ip_cidrs,
                exclude=given.exclude,
            )  # fmt: skip
            self.compare(block, given, result.lines, result.messages)
            assert result.exit_code == any(line.startswith("! ") for line in block.text)
        elif first == "agent":
            self.agent = Agent(self.folder, flags(rest))
            self.sync(block, self.agent.given)
        else:
            assert self.agent is not None, f"line {block.line}: there is no agent"
            if first == "set-state":
                self.agent.set_state(*rest)
                assert not any(block.text), f"line {block.line}: set-state prints nothing; sync does"
            elif first == "failed":
                self.agent.set_failed(rest[0], rest[1:])
                assert not any(block.text), f"line {block.line}: failed prints nothing; sync does"
            elif first == "restart":
                self.agent.restart()
                assert not any(block.text), f"line {block.line}: restart prints nothing; sync does"
            elif first == "sync":
                self.sync(block, flags(rest))
            else:
                raise AssertionError(f"line {block.line}: unknown block {first}")

    def sync(self, block: Block, given: Flags) -> None:
        self.agent.sync()
        self.compare(block, given, dump(self.agent.maps), self.agent.messages())

    def compare(self, block: Block, given: Flags, lines, messages) -> None:
        messages = [
            f"{'~' if message.warning else '!'} {str(message).replace(f'{self.folder}/', '')}" for message in messages
        ]
        wanted = [line for line in block.text if line and line[0] not in "!~#"]
        if given.only:
            lines = [line for line in lines if line.split(":")[0] in given.only]
        assert lines == wanted, f"block at line {block.line}"
        expected = [line for line in block.text if line[:2] in ("! ", "~ ")]
        assert len(messages) == len(expected), f"block at line {block.line}: {messages}"
        for text, pattern in zip(messages, expected, strict=True):
            regex = ".*".join(re.escape(part) for part in pattern.split("..."))
            assert re.fullmatch(regex, text), f"block at line {block.line}: {text!r}"
