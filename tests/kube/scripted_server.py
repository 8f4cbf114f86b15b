"""An API server in memory that replaces KubeClient: a test's script defines the contents and order of lists and watches."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from lbagent.errors import LbError
from lbagent.kube.kube_client import Answer, ApiError, ServerUnreachable
from lbagent.kube.server_contact import ServerContact
from tests.kube.api_server import PATHS, Entry, Obj, bookmark, event, event_line, is_selected, key_of, status

NAMESPACE = "/api/v1/namespaces/kube-system"
KINDS = {path: kind for kind, path in PATHS.items()}
END = {"k8s.io/initial-events-end": "true"}


class Body:
    """A whole answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        return self._data


class Watch:
    """An open watch: it sends a part of its events whenever the script requests it."""

    def __init__(self, server: ScriptedServer, kind: str, query: dict[str, str]) -> None:
        self._server, self.kind, self._query = server, kind, query
        self.content = self  # as aiohttp's responses have one
        self._chunks: list[bytes | LbError | None] = []  # None: the server ends the watch
        self._came = asyncio.Event()
        self.is_waiting = False
        self.is_over = False
        self._initial: list[bytes] = []
        self._wants_end = "sendInitialEvents" in query
        self._at = int(query.get("resourceVersion", "0"))
        if self._wants_end:
            self._at = server.version
            self._initial = [event("ADDED", obj) for obj in server.listed(kind, query).values()]
            server.rng.shuffle(self._initial)
        elif self._at < server.compacted:
            self.end([event("ERROR", status(410, f"too old resource version: {self._at}", "Expired"))])

    @property
    def is_settled(self) -> bool:
        """Whether all was sent, and read."""
        return self.is_waiting and not (self._chunks or self.has_more)

    @property
    def has_more(self) -> bool:
        """Whether it has events to send."""
        return not self.is_over and bool(self._initial or self._wants_end or self._entries())

    def send(self, count: int, how: str = "in order") -> None:
        """Send the next events: each once, or `twice`, or `shuffled`, which no server does before a list is whole."""
        lines, self._initial = self._initial[:count], self._initial[count:]
        for entry in self._entries()[: count - len(lines)]:
            self._at = entry.version
            lines += [line for line in [event_line(entry, self._query)] if line]
        if not (self._initial or self._wants_end) and how != "in order":
            lines *= 2
            if how == "shuffled":
                self._server.rng.shuffle(lines)
            self._push(b"".join(lines))
            return
        data = b"".join(lines)
        cut = self._server.rng.randrange(len(data) + 1)
        self._push(data[:cut])
        self._push(data[cut:])

    def bookmark(self) -> None:
        """Mark the end of the events, which also ends the list that comes first."""
        self.send(len(self._initial) + len(self._entries()))
        self._push(bookmark(self.kind, self._server.version, END if self._wants_end else None))
        self._at, self._wants_end = self._server.version, False

    def end(self, lines: list[bytes]) -> None:
        """Send this and no more."""
        self._push(b"".join(lines))
        self._chunks.append(None)
        self.is_over = True

    def cut(self) -> None:
        """Break the connection; events that were sent and not read yet are lost, or a part of them."""
        del self._chunks[self._server.rng.randrange(len(self._chunks) + 1) :]
        self._chunks.append(ServerUnreachable("the connection broke"))
        self.is_over = True
        self._came.set()

    async def iter_any(self) -> AsyncIterator[bytes]:
        while True:
            while not self._chunks:
                self._came.clear()
                self.is_waiting = True
                await self._came.wait()
                self.is_waiting = False
            chunk = self._chunks.pop(0)
            if isinstance(chunk, LbError):
                raise chunk
            if chunk is None:
                return
            yield chunk

    def _entries(self) -> list[Entry]:
        return [entry for entry in self._server.history[self.kind] if entry.version > self._at]

    def _push(self, data: bytes) -> None:
        if data and not self.is_over:
            self._chunks.append(data)
        self._came.set()


class ScriptedServer:
    """Objects and their history. Requests are answered at once, watches send what the script requests."""

    def __init__(self, rng: random.Random, *, streams: bool) -> None:
        self.rng, self._streams = rng, streams
        self.version, self.compacted = 10, 0
        self.objects: dict[str, dict[str, Obj]] = {kind: {} for kind in PATHS}
        self.history: dict[str, list[Entry]] = {kind: [] for kind in PATHS}
        self.failures: list[LbError] = []  # of the next requests
        self.watches: list[Watch] = []
        self._pages: dict[str, tuple[int, list[Obj]]] = {}
        self.contact = ServerContact()

    # --- what the cluster does ---

    def put(self, obj: Obj) -> None:
        kind, key = obj["kind"], key_of(obj)
        self.version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self.history[kind].append(Entry(self.version, self.objects[kind].get(key), obj))
        self.objects[kind][key] = obj

    def delete(self, kind: str, key: str) -> None:
        if old := self.objects[kind].pop(key, None):
            self.version += 1
            self.history[kind].append(Entry(self.version, old, None))

    def compact(self) -> None:
        """Forget the history and open pages. A watch can no longer send its unsent events."""
        for watch in [each for each in self.watches if each.has_more]:
            watch.end([event("ERROR", status(410, "too old", "Expired"))])
        self.compacted = self.version
        for entries in self.history.values():
            entries.clear()
        self._pages.clear()

    def listed(self, kind: str, query: dict[str, str]) -> dict[str, Obj]:
        return {key: obj for key, obj in sorted(self.objects[kind].items()) if is_selected(obj, query)}

    def open(self, kind: str) -> list[Watch]:
        return [each for each in self.watches if each.kind == kind and not each.is_over]

    @property
    def is_settled(self) -> bool:
        """Whether every resource is watched, and nothing is left to send or to read."""
        return len(self.watches) == len(PATHS) and all(each.is_settled for each in self.watches)

    # --- in KubeClient's place ---

    @asynccontextmanager
    async def get(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncIterator[Answer]:
        assert silence_s > 0
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        if path == NAMESPACE:
            yield Answer(Body(json.dumps({"metadata": {"name": "kube-system", "uid": "one"}}).encode()))
            return
        kind, words = KINDS[path], dict(query)
        if "watch" not in words:
            yield Answer(Body(self._list(kind, words)))
            return
        if "sendInitialEvents" in words and not self._streams:
            raise ApiError(422, "sendInitialEvents is forbidden for watch")
        watch = Watch(self, kind, words)
        self.watches.append(watch)
        try:
            yield Answer(watch)
        finally:
            self.watches.remove(watch)

    async def close(self) -> None:
        """Nothing is open."""

    def _list(self, kind: str, query: dict[str, str]) -> bytes:
        version, items = self.version, list(self.listed(kind, query).values())
        if token := query.get("continue"):
            if token not in self._pages:
                raise ApiError(410, "the provided continue parameter is too old")
            version, items = self._pages.pop(token)
        limit = int(query.get("limit", "0")) or len(items)
        meta = {"resourceVersion": str(version)}
        if items[limit:]:
            meta["continue"] = f"{kind}-{version}-{len(items)}"
            self._pages[meta["continue"]] = version, items[limit:]
        return json.dumps({"kind": f"{kind}List", "metadata": meta, "items": items[:limit]}).encode()
