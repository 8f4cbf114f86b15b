"""The record of a node for a bug report: a tar file of what the data plane, the state folder and the checks have. Never payload.

`lbagent record dump` makes one with or without an agent, and an agent makes one when it ends by a defect (crash_record.py).
"""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from lbagent.agent.last_status import last_status
from lbagent.checks.table import finding_row, offline_findings
from lbagent.config import Config
from lbagent.errors import LbError, NotFound
from lbagent.model.address import L3n4Addr
from lbagent.model.check import Finding
from lbagent.sync.change_causes import ChangeCauses
from lbagent.sync.generation_history import GenerationHistory
from lbagent.targets.data_plane import RecordedPackets
from lbagent.targets.offline_planes import NameOf, recorded

_ARCHIVE_NAME = "lbagent-record"  # in the head of the file: by it a record is recognised
_NAME_AT = 10  # offset of the name in a gzip file
_FILE_MODE = 0o600


class NodeFacts(NamedTuple):
    """What is not in the pins. `status`: how the agent is, or was at `status_at`; None: not known."""

    name_of: NameOf  # id and text of a frontend -> NAMESPACE/NAME
    status: Any = None
    status_at: float = 0.0
    changes: Sequence[Any] = ()  # generations, the oldest first (sync/generation_history.py)
    frontends: Collection[str] = ()  # ADDRESS:PORT/PROTOCOL of Services, also of earlier ones
    more: Sequence[tuple[str, str]] = ()  # further members: name and text


def facts_left(
    state_dir: str, name_of: NameOf, frontends: Collection[str] = (), more: Sequence[tuple[str, str]] = ()
) -> NodeFacts:
    """Return the facts that an agent left in the state folder."""
    status, at = last_status(state_dir)
    changes = GenerationHistory(state_dir, ChangeCauses()).newest()[::-1]
    return NodeFacts(name_of, status, at, changes, frontends, more)


class NodeRecord(NamedTuple):
    """The bytes of the file, and what is not in it: sentences."""

    data: bytes
    problems: Sequence[str]


def node_record(
    config: Config,
    facts: NodeFacts,
    *,
    redact: bool = False,
    conditions: Callable[[Sequence[Finding]], Iterable[Finding]] = lambda _found: (),
) -> NodeRecord:
    """Make the record. With `redact` addresses of clients have replacements.

    `conditions` returns findings of the running agent that the given ones lack. Raises NotFound where nothing is pinned and no
    agent is known, KernelError without the right to read the pins.
    """
    changes = msgspec.to_builtins(facts.changes)
    texts = {*facts.frontends, *(text for each in changes for text in each["frontends"])}
    try:
        packets = recorded(config, facts.name_of, _addresses(texts), redact=redact)
    except NotFound as error:
        if facts.status is None and not facts.more:
            raise
        packets = RecordedPackets(problems=[str(error)])
    problems = list(packets.problems)
    replaced = packets.clients.in_text if packets.clients is not None else str
    try:
        found = offline_findings(config)
        findings = [finding_row(each) for each in [*found, *conditions(found)]]
    except (LbError, OSError) as error:
        findings = []
        problems.append(f"the checks of `lbagent doctor` could not be made: {error}")
    status = msgspec.to_builtins(facts.status)
    now = time.time()
    members = [
        ("events.jsonl", packets.events, now),
        ("packets.pcapng", packets.packets, now),
        ("changes.jsonl", replaced("".join(f"{_json(each)}\n" for each in changes)).encode(), now),
        ("maps.dump", packets.maps.encode(), now),
        ("status.json", replaced(_json(status, indent=2) + "\n").encode(), facts.status_at or now),
        ("doctor.json", replaced(_json(findings, indent=2) + "\n").encode(), now),
        *((name, replaced(text).encode(), now) for name, text in facts.more),
    ]
    return NodeRecord(_archive(members), problems)


def is_record(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a record of lbagent."""
    name = _ARCHIVE_NAME.encode() + b"\0"
    return head[:2] == b"\x1f\x8b" and head[_NAME_AT : _NAME_AT + len(name)] == name


def _addresses(frontends: Iterable[str]) -> set[bytes]:
    found = set()
    for text in frontends:
        try:
            found.add(L3n4Addr.parse(text).address)
        except ValueError:  # of a file that anyone may have written
            continue
    return found


def _json(value: object, indent: int = 0) -> str:
    data = msgspec.json.encode(value)
    return (msgspec.json.format(data, indent=indent) if indent else data).decode()


def _archive(members: Iterable[tuple[str, bytes, float]]) -> bytes:
    """Return a compressed tar file of members: name, content, time."""
    whole = io.BytesIO()
    with (
        gzip.GzipFile(_ARCHIVE_NAME, "wb", fileobj=whole) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data, changed_at in members:
            head = tarfile.TarInfo(name)
            head.size, head.mtime, head.mode = len(data), int(changed_at), _FILE_MODE
            archive.addfile(head, io.BytesIO(data))
    return whole.getvalue()
