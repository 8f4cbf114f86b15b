"""An API server with the list and watch semantics of Kubernetes, and with faults. Versions, selectors, pages, bookmarks, 410.

It is independent of lbagent: a source must have the objects of a fresh list. Runs in a test's event loop, or alone:
`python -m tests.kube.api_server PORT FILE` serves a JSON list of objects, read again whenever the file changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

Obj = dict[str, Any]
PATHS = {
    "Service": "/api/v1/services",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "ServiceCIDR": "/apis/networking.k8s.io/v1/servicecidrs",
    "BackendState": "/apis/lbagent.io/v1alpha1/backendstates",
    "LocalRedirectPolicy": "/apis/lbagent.io/v1alpha1/localredirectpolicies",
    "CiliumLocalRedirectPolicy": "/apis/cilium.io/v2/ciliumlocalredirectpolicies",
}
NAMESPACE = "/api/v1/namespaces/kube-system"
NAMES = {path.rsplit("/", 1)[1]: kind for kind, path in PATHS.items()}


class Entry(NamedTuple):
    """A change: an object before and after."""

    version: int
    old: Obj | None
    new: Obj | None


def key_of(obj: Obj) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]


def is_selected(obj: Obj | None, query: dict[str, str]) -> bool:
    if obj is None:
        return False
    for term in filter(None, query.get("labelSelector", "").split(",")):
        assert term.startswith("!"), term
        if term[1:] in obj["metadata"].get("labels", {}):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, value = term.split("=")
        found: Any = obj
        for step in path.split("."):
            found = found.get(step, {})
        if found != value:
            return False
    return True


def status(code: int, message: str = "", reason: str = "") -> Obj:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": message, "reason": reason}


class ApiServer:
    """Objects, their history, and the connections that read them."""

    def __init__(self) -> None:
        self.version = 1000
        self.uid = "one"  # of the namespace kube-system: of this server's history
        self.objects: dict[str, dict[str, Obj]] = {kind: {} for kind in PATHS}
        self.history: dict[str, list[Entry]] = {kind: [] for kind in PATHS}
        self.compacted = 0  # what was before this version is forgotten
        self.installed = set(PATHS) - {"BackendState", "LocalRedirectPolicy", "CiliumLocalRedirectPolicy"}
        self.streams_lists = True
        self.tokens: set[str] = set()  # bearer tokens that are let in; none: everybody
        self.forbidden: set[tuple[str, str]] = set()  # (verb, resource)
        self.requests: Counter[str] = Counter()  # by verb and resource: 'list services', 'watch pods'
        self.seen: list[dict[str, str]] = []  # the queries
        self.namespace_queries: list[dict[str, str]] = []
        self.answers: deque[web.Response | Callable[[], Any]] = (
            deque()
        )  # given to the next requests, whatever these are
        self.broken: dict[str, int] = {}  # resources that answer with this status; 0: not at all
        self.initializing: set[str] = set()  # resources whose definition has just been made
        self.expire_pages = 0  # continue tokens to answer with 410
        self.on_expired: Callable[[], Any] = lambda: None
        self.stale: dict[str, tuple[int, dict[str, Obj]]] = {}  # the next list of a kind is this one
        self.mangle: Callable[[list[bytes]], list[bytes]] = lambda lines: lines  # what is sent in one go to a watch
        self.deaf: set[str] = set()  # kinds whose watches send bookmarks and lose every event
        self.lag_s = 0.0  # for which a watch holds back its events
        self.between_s = 0.0  # between two events of a watch
        self.is_silent = False  # accepts requests and sends nothing, and nothing more to watches
        self.bookmark_s = 0.2  # a minute, at a real one
        self.port = 0
        self._pages: dict[str, tuple[int, list[Obj]]] = {}
        self._changed = asyncio.Condition()
        self._bookmarks = 0
        self._transports: set[asyncio.Transport] = set()
        self._peers: set[Any] = set()  # of all connections so far
        self._silenced: set[Any] = set()  # those of them to which nothing is sent any more
        self._runner: web.AppRunner | None = None

    # --- what the cluster does ---

    async def put(self, obj: Obj) -> None:
        await self.change([obj])

    async def delete(self, kind: str, key: str) -> None:
        await self.change([], [(kind, key)])

    async def change(self, objs: Iterable[Obj], gone: Iterable[tuple[str, str]] = ()) -> None:
        """Change some objects; a watch gets all changes at once."""
        for obj in objs:
            kind, key = obj["kind"], key_of(obj)
            self.version += 1
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
            self.history[kind].append(Entry(self.version, self.objects[kind].get(key), obj))
            self.objects[kind][key] = obj
        for kind, key in gone:
            self.version += 1
            old = self.objects[kind].pop(key)
            self.history[kind].append(Entry(self.version, old, None))
        await self._wake()

    async def bookmark(self) -> None:
        self._bookmarks += 1
        await self._wake()

    def compact(self) -> None:
        """Forget the history: watches that begin before now get 410."""
        self.compacted = self.version
        for entries in self.history.values():
            entries.clear()

    def replace(self, objs: Iterable[Obj] = (), version: int = 1) -> None:
        """Become another server, with these objects: restored from an old backup, or empty."""
        self.version = version
        self.objects = {kind: {} for kind in PATHS}
        for obj in objs:
            self.version += 1
            self.objects[obj["kind"]][key_of(obj)] = {
                **obj,
                "metadata": {**obj["metadata"], "resourceVersion": str(self.version)},
            }
        self.compact()
        self.cut()

    def cut(self) -> None:
        """Break every connection at once."""
        for transport in list(self._transports):
            if not transport.is_closing():
                transport.abort()

    def vanish(self) -> None:
        """Send nothing more on the existing connections, like a server that is gone without a FIN or RST. New ones work."""
        self._silenced |= self._peers

    def _is_silent_to(self, request: web.Request) -> bool:
        transport = request.transport
        return self.is_silent or (transport is not None and transport.get_extra_info("peername") in self._silenced)

    def listed(self, kind: str, query: dict[str, str] | None = None) -> dict[str, Obj]:
        """The objects of a fresh list."""
        return {key: obj for key, obj in sorted(self.objects[kind].items()) if is_selected(obj, query or {})}

    # --- serving ---

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or self.port, reuse_address=True, ssl_context=tls)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        self.cut()
        if self._runner:
            await self._runner.cleanup()
        self._runner = None

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        self._transports.add(transport)
        self._peers.add(transport.get_extra_info("peername"))
        try:
            return await self._dispatch(request)
        finally:
            self._transports.discard(transport)

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        query, name = dict(request.query), request.path.rsplit("/", 1)[1]
        if request.path == NAMESPACE:
            return await self._namespace(request)
        verb = "watch" if query.get("watch") else "list"
        self.requests[f"{verb} {name}"] += 1
        self.seen.append({"resource": name, **query})
        while self._is_silent_to(request):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if self.answers:
            answer = self.answers.popleft()
            return answer() if callable(answer) else answer
        if self.tokens and request.headers.get("Authorization", "").partition(" ")[2] not in self.tokens:
            return web.json_response(status(401, "Unauthorized"), status=401)
        if (verb, name) in self.forbidden:
            text = f'{name} is forbidden: User "agent" cannot {verb} resource "{name}"'
            return web.json_response(status(403, text), status=403)
        while self.broken.get(name) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if name in self.broken:
            return web.json_response(status(self.broken[name], "it is broken"), status=self.broken[name])
        if name in self.initializing:
            text = "storage is (re)initializing"
            return web.json_response(status(429, text, "TooManyRequests"), status=429, headers={"Retry-After": "1"})
        kind = NAMES.get(name)
        if kind not in self.installed or request.path != PATHS[kind]:
            return web.Response(text="404 page not found\n", status=404)
        return await self._watch(request, kind, query) if verb == "watch" else self._list(kind, query)

    async def _namespace(self, request: web.Request) -> web.StreamResponse:
        """Answer the GET of the namespace kube-system. It is in neither `requests` nor `seen`."""
        while self._is_silent_to(request):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.namespace_queries.append(dict(request.query))
        if ("get", "namespaces") in self.forbidden:
            text = 'namespaces "kube-system" is forbidden: User "agent" cannot get resource "namespaces"'
            return web.json_response(status(403, text), status=403)
        return web.json_response({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": self.uid}})

    def _list(self, kind: str, query: dict[str, str]) -> web.Response:
        if token := query.get("continue"):
            if self.expire_pages:
                self.expire_pages -= 1
                self.on_expired()
                return web.json_response(
                    status(410, "The provided continue parameter is too old", "Expired"), status=410
                )
            version, items = self._pages.pop(token)
        elif kind in self.stale:
            version, objects = self.stale.pop(kind)
            items = list(objects.values())
        else:
            version, items = self.version, list(self.listed(kind, query).values())
        limit = int(query.get("limit", "0")) or len(items)
        page, rest = items[:limit], items[limit:]
        meta = {"resourceVersion": str(version)}
        if rest:
            meta["continue"] = f"page-{len(self._pages)}-{len(rest)}-{kind}"
            self._pages[meta["continue"]] = version, rest
        bare = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in page]
        return web.json_response({"kind": f"{kind}List", "apiVersion": "v1", "metadata": meta, "items": bare})

    async def _watch(self, request: web.Request, kind: str, query: dict[str, str]) -> web.StreamResponse:
        initial = query.get("sendInitialEvents") == "true"
        if initial and not self.streams_lists:
            text = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            return web.json_response(status(422, text, "Invalid"), status=422)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        at = int(query.get("resourceVersion") or "0")
        if initial:
            at = self.version
            lines = [event("ADDED", obj) for obj in self.listed(kind, query).values()]
            lines.append(bookmark(kind, at, {"k8s.io/initial-events-end": "true"}))
            await self._send(response, lines)
        elif at < self.compacted:
            await response.write(event("ERROR", status(410, f"too old resource version: {at}", "Expired")))
            return response
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(int(query.get("timeoutSeconds", "600"))):
                await self._follow(request, response, kind, query, at)
        return response

    async def _follow(
        self, request: web.Request, response: web.StreamResponse, kind: str, query: dict[str, str], at: int
    ) -> None:
        bookmarks = self._bookmarks
        while True:
            while self._is_silent_to(request):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            lines = [line for entry in self.history[kind] if entry.version > at and (line := event_line(entry, query))]
            at = max([at, *(entry.version for entry in self.history[kind])])
            if kind in self.deaf:
                lines = []
            if self._bookmarks > bookmarks and query.get("allowWatchBookmarks") == "true":
                at = max(at, self.version)
                lines.append(bookmark(kind, self.version))
            bookmarks = self._bookmarks
            if lines:
                await asyncio.sleep(self.lag_s)
                await self._send(response, lines)
            async with self._changed:
                if any(entry.version > at for entry in self.history[kind]) or bookmarks != self._bookmarks:
                    continue
                try:
                    async with asyncio.timeout(self.bookmark_s):
                        await self._changed.wait()
                except TimeoutError:
                    bookmarks -= self.version >= at  # one that is older than the watch is not sent

    async def _send(self, response: web.StreamResponse, lines: list[bytes]) -> None:
        for line in self.mangle(lines):
            await response.write(line)
            if self.between_s:
                await asyncio.sleep(self.between_s)


def event_line(entry: Entry, query: dict[str, str]) -> bytes:
    """Return a change as a watch with these selectors sees it, b'' when it does not."""
    before, after = is_selected(entry.old, query), is_selected(entry.new, query)
    if after:
        assert entry.new is not None
        return event("MODIFIED" if before else "ADDED", entry.new)
    if before:
        assert entry.old is not None
        obj = entry.new or entry.old
        return event("DELETED", {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(entry.version)}})
    return b""


def event(kind: str, obj: Obj) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def bookmark(kind: str, version: int, annotations: dict[str, str] | None = None) -> bytes:
    meta: Obj = {"resourceVersion": str(version), "creationTimestamp": None}
    return event("BOOKMARK", {"kind": kind, "metadata": meta | ({"annotations": annotations} if annotations else {})})


def _words_of(path: Path) -> set[str]:
    return set(path.read_text().split()) if path.exists() else set()


async def main(port: int, path: str) -> None:
    """Serve a file of objects without end. The kinds of `PATH.deaf` have watches that lose every event."""
    api, seen = ApiServer(), 0
    await api.start(port)
    while True:
        if (changed := os.stat(path).st_mtime_ns) != seen:
            seen = changed
            api.deaf = await asyncio.to_thread(_words_of, Path(f"{path}.deaf"))
            objs = json.loads(await asyncio.to_thread(Path(path).read_text))
            keys = {(obj["kind"], key_of(obj)) for obj in objs}
            gone = [(kind, key) for kind in PATHS for key in api.objects[kind] if (kind, key) not in keys]
            await api.change(objs, gone)
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
