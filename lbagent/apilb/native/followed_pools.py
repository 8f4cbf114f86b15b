"""The pool files of --apilb: one file, or a folder of them. For an invalid file its last valid pools are kept.

Files are polled, not watched: a poll costs one stat per file. A changed file is read when two polls found the same state, so that a
half-written one is not read; a file is removed when two polls did not find it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from lbagent.apilb.files.pool_document import PoolFaults
from lbagent.apilb.instance import Instance, Mode, OnMarkedDown
from lbagent.apilb.native.kept_state import KeptInstance
from lbagent.apilb.native.pool_objects import KIND, ServedInstance, full_name, served_instance
from lbagent.errors import ConfigError, LbError
from lbagent.model.message import Message
from lbagent.objects.records import NATIVE_POOLS, Origin

SUFFIXES = (".yaml", ".yml", ".json")
Read = Callable[[str], tuple[Sequence[Instance], Sequence[Message]]]  # path -> instances, warnings; raises LbError
Signature = tuple[int, int, int, int]  # device, inode, mtime in ns, size; (0, 0, 0, errno) if stat fails


class FollowedPools:
    """The files by path, each with its pools and messages."""

    def __init__(self, path: str, read: Read, kept: Mapping[str, Sequence[KeptInstance]]) -> None:
        """`kept` are the pools that an earlier agent served of each file."""
        self._path, self._read = path, read
        self._kept = dict(kept)
        self._seen: dict[str, Signature] = {}  # as read
        self._before: dict[str, Signature] | None = None  # as the last poll found them
        self._pools: dict[str, tuple[ServedInstance, ...]] = {}
        self._messages: dict[str, list[Message]] = {}
        self._problem: Message | None = None  # of the folder itself
        self._unknown: set[str] = set()  # files that were never valid

    @property
    def trusted(self) -> bool:
        """Whether the pools of every file are known, at least from its last valid text."""
        return self.distrust is None

    @property
    def distrust(self) -> Message | None:
        """The error of the folder, or of the first file that was never valid."""
        unknown = (message for path in sorted(self._unknown) for message in self._messages[path])
        return self._problem or next((message for message in unknown if not message.warning), None)

    def pools(self) -> list[ServedInstance]:
        """Return the pools of all files, each name once: the first file wins."""
        found: dict[str, ServedInstance] = {}
        for path in sorted(self._pools):
            for pool in self._pools[path]:
                found.setdefault(pool.key, pool)
        return list(found.values())

    def kept(self) -> dict[str, tuple[KeptInstance, ...]]:
        """Return what the next agent needs of each file."""
        out = {path: tuple(_kept_of(pool) for pool in pools) for path, pools in self._pools.items()}
        return {path: tuple(kept) for path, kept in self._kept.items()} | out

    def messages(self) -> list[Message]:
        """Return the messages, in a stable order."""
        found = [self._problem] if self._problem else []
        for path in sorted(self._messages):
            found += self._messages[path]
        holders: dict[str, ServedInstance] = {}
        for path in sorted(self._pools):
            for pool in self._pools[path]:
                holder = holders.setdefault(pool.key, pool)
                if holder is not pool:
                    problem = (
                        f"the name {pool.instance.name} is taken by {KIND} {holder.full_name} of {holder.origin.file}"
                    )
                    found.append(Message(problem, "it is not served", "name", KIND, pool.full_name, path))
        return found

    def look(self) -> bool:
        """Poll every file and read changed ones; return whether pools or messages may have changed. Blocks for milliseconds."""
        paths = self._list()
        first, before = self._before is None, self._before or {}
        if paths is None:
            if first:
                self._recall(self._kept)
            changed, self._before = first or self._problem is None, before
            self._problem = Message(self._missing(), "the previous pools are served", file=self._path)
            return changed
        changed, self._problem = first or self._problem is not None, None
        self._before = {path: _signature(path) for path in paths}
        for path, signature in self._before.items():
            if self._seen.get(path) != signature and (first or before.get(path) == signature):
                self._seen[path] = signature
                self._take(path)
                changed = True
        for path in {*self._seen, *self._kept} - self._before.keys():
            if first or path not in before:
                changed |= self._forget(path)
        return changed

    def _list(self) -> list[str] | None:
        """Return the paths of the files; None if the folder cannot be read: then nothing counts as removed."""
        try:
            names = os.listdir(self._path)
        except NotADirectoryError:
            return [self._path]
        except FileNotFoundError:  # a removed file means that there is no pool; a removed folder means nothing
            return [] if self._path.endswith(SUFFIXES) and os.path.isdir(os.path.dirname(self._path) or ".") else None
        except OSError:
            return None
        chosen = (name for name in sorted(names) if name.endswith(SUFFIXES) and not name.startswith("."))
        return [os.path.join(self._path, name) for name in chosen]

    def _missing(self) -> str:
        if os.path.lexists(self._path):
            return "the folder of pool files cannot be read"
        return "there is no such folder of pool files; an empty one means that there are no pools"

    def _take(self, path: str) -> None:
        """Read a file; an invalid one keeps its previous pools."""
        try:
            instances, warnings = self._read(path)
            pools, messages = _pools_of(path, instances)
        except (LbError, OSError) as error:
            self._recall({path: self._kept.get(path, ())} if path not in self._pools else {})
            kept = "its last valid pools are served" if path in self._pools else "nothing of it is served"
            self._unknown |= {path} - self._pools.keys()
            self._messages[path] = _faults(path, error, kept)
            return
        self._unknown.discard(path)
        self._pools[path] = pools
        self._messages[path] = [*warnings, *messages]

    def _recall(self, kept: Mapping[str, Sequence[KeptInstance]]) -> None:
        """Serve the pools that an earlier agent served of these files."""
        for path, instances in kept.items():
            if instances:
                self._pools[path] = _pools_of(path, [_instance_of(each) for each in instances])[0]

    def _forget(self, path: str) -> bool:
        known = [path in each for each in (self._seen, self._pools, self._kept, self._messages)]
        self._seen.pop(path, None)
        self._pools.pop(path, None)
        self._kept.pop(path, None)
        self._messages.pop(path, None)
        self._unknown.discard(path)
        return any(known)


def _faults(path: str, error: LbError | OSError, kept: str) -> list[Message]:
    """Return the error of a file, with its place."""
    if isinstance(error, PoolFaults):
        return [fault if fault.warning else replace(fault, kept=kept) for fault in error.faults]
    if isinstance(error, ConfigError) and error.file:
        return [Message(error.problem, kept, file=error.file, line=error.line)]
    return [Message(str(error), kept, file=path)]


def _pools_of(path: str, instances: Sequence[Instance]) -> tuple[tuple[ServedInstance, ...], list[Message]]:
    """Return the pools that this host serves, and messages about others."""
    pools, messages = [], []
    mine = [each for each in instances if each.mode is Mode.NATIVE and each.ssh is None]
    for order, instance in enumerate(mine):
        try:
            pools.append(served_instance(instance, Origin(path, order, source=NATIVE_POOLS)))
        except ValueError as error:
            messages.append(Message(str(error), "it is not served", kind=KIND, key=full_name(instance), file=path))
    if instances and not mine:
        problem = "no instance is of native mode and of this host (without ssh)"
        messages.append(Message(problem, "nothing of it is served", file=path, warning=True))
    return tuple(pools), messages


def _signature(path: str) -> Signature:
    try:
        status = os.stat(path)
    except OSError as error:
        return 0, 0, 0, error.errno or 1
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _kept_of(pool: ServedInstance) -> KeptInstance:
    one = pool.instance
    return KeptInstance(
        pool=one.pool,
        name=one.name,
        bind_address=one.bind_address,
        servers=one.servers,
        health_check=one.health_check,
        on_marked_down=one.on_marked_down,
    )


def _instance_of(kept: KeptInstance) -> Instance:
    return Instance(
        pool=kept.pool,
        name=kept.name,
        mode=Mode.NATIVE,
        bind_address=kept.bind_address,
        servers=kept.servers,
        host_config_path="",
        health_check=kept.health_check,
        on_marked_down=OnMarkedDown(kept.on_marked_down),
    )
