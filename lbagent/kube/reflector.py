"""Lists one resource and watches it, until cancelled. Source: client-go's reflector (behaviour).

The list is a stream of events if the server supports that (WatchList), else pages. Changes that a watch missed (410) are found by
a new list, which is compared with the cached objects: they stay in force meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.kube.api_failure import ApiFailure
from lbagent.kube.kube_client import Answer, ApiError, KubeClient, ServerUnreachable, Status
from lbagent.kube.kube_settings import KubeTiming
from lbagent.kube.object_cache import Draft, ObjectCache, UnreadableAnswer, is_older, metadata_of
from lbagent.kube.resources import Resource
from lbagent.kube.server_history import ServerHistory
from lbagent.objects.records import ObjectChange

log = logging.getLogger(__name__)
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
# The server is behind a version that it sent. Servers before 1.19 send no cause. Source: client-go, isTooLargeResourceVersionError.
TOO_LARGE, TOO_LARGE_TEXT = "ResourceVersionTooLarge", "Too large resource version"
DECODE_BATCH = 100  # objects decoded in one go
MAX_NOT_FOUND_ANSWERS = 5  # 404 answers in a row until the objects of a resource count as deleted
NO_WATCH_LIST = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class OtherServer(Exception):
    """The answering server is not the one whose objects and versions are in the cache."""


class _ListenerFailed(Exception):
    """A callback for lists and changes raised an error: it does not get the missed changes a second time."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Backoff:
    """Doubling pauses with jitter; after a time without failures they restart at the first."""

    def __init__(self, timing: KubeTiming, rng: Callable[[], float] = random.random) -> None:
        self._timing, self._rng = timing, rng
        self._delay_s = timing.first_pause_s
        self._resumed = -timing.healthy_s  # when the last pause ended, monotonic seconds

    def pause(self, *, is_failure: bool = True) -> float:
        """Return the seconds to wait. An end without failure (a watch that ends, an expired version) waits only if it recurs."""
        now, first = time.monotonic(), self._timing.first_pause_s
        is_healthy = now - self._resumed >= self._timing.healthy_s
        if is_healthy:
            self._delay_s = first
        if is_healthy and not is_failure:
            self._resumed = now
            return 0.0
        seconds = min(self._delay_s * (1 + self._rng()), self._timing.max_pause_s)
        self._delay_s = min(self._delay_s * 2, self._timing.max_pause_s)
        self._resumed = now + seconds
        return seconds


class Reflector:
    """Keeps an ObjectCache equal to the server's objects. `listed` is set after the first list; `failure` is the current one."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        timing: KubeTiming,
        cache: ObjectCache,
        *,
        history: ServerHistory | None = None,
        on_list: Callable[[Reflector, Draft], None],
        on_changes: Callable[[Sequence[ObjectChange]], None],
    ) -> None:
        """`on_list` applies a whole list to the cache; `on_changes` gets the changes of events, [] if only `failure` changed."""
        self.resource, self.cache = resource, cache
        self.listed = asyncio.Event()
        self.failure: ApiFailure | None = None
        self._client, self._timing = client, timing
        self._on_list_callback, self._on_changes_callback = on_list, on_changes
        self._history = history or ServerHistory(client, timing.list_silence_s)
        self._server = ""  # uid of the server of the cached objects and versions; '': it could not be read
        self._backoff = Backoff(timing)
        self._woken_at = -timing.max_pause_s  # when a pause last ended early, monotonic seconds
        self._may_wake = False  # the next pause may end early
        self._version = ""  # the cache is complete up to this version; '': a list is needed
        self._newest = ""  # the newest version seen from this server
        self._is_behind = False  # the last list was older than that
        self._is_doubtful = False  # a watch broke: the next server that answers may be another one
        self._streams_lists = True
        self._verb = "list"
        self._received_at = 0.0  # when the watch sent data last, monotonic seconds
        self._absent = 0  # consecutive 404 answers
        self._round: asyncio.Timeout | None = None  # of the current list and watch; it ends early for `list_again`
        self._pages_next = False  # the next list is read in pages: the watch of this server may send nothing
        self._failing_since = 0.0

    async def run(self) -> None:
        """Follow the resource until cancelled. No answer of the server ends it."""
        while True:
            this = self._round = asyncio.timeout(None)
            try:
                async with this:
                    await self._pause(await self._follow_once())
            except _ListenerFailed as error:
                raise error.error from None
            except TimeoutError:
                if not this.expired():
                    raise
                self._version, self._pages_next = "", True

    def list_again(self) -> None:
        """End the current watch, and list again. The objects stay until the list is whole."""
        if self._round is not None and not self._round.expired():  # else it has not begun, or ends already
            self._round.reschedule(asyncio.get_running_loop().time())

    async def _pause(self, seconds: float) -> None:
        """Wait. After an outage, the success of another request ends the wait, at most once in `max_pause_s`."""
        now, timing = time.monotonic(), self._timing
        if not self._may_wake or now - self._woken_at < timing.max_pause_s:
            await asyncio.sleep(seconds)
            return
        if await self._client.contact.success_within(seconds):
            self._woken_at = time.monotonic()
            rest_s = now + seconds - self._woken_at
            await asyncio.sleep(min(rest_s, random.uniform(0, timing.wake_spread_s)))

    async def _follow_once(self) -> float:
        """List if needed and watch until the watch ends; return the pause before the next round."""
        self._may_wake = False
        try:
            await self._follow()
        except _ListenerFailed:
            raise
        except OtherServer:
            return self._backoff.pause(is_failure=False)
        except UnreadableAnswer as error:
            self._version = ""
            self._fail(None, str(error))
        except ServerUnreachable as error:
            self._is_doubtful = self._may_wake = True
            self._fail(0, f"the API server does not answer: {error}")
        except ApiError as error:
            if error.status == HTTPStatus.GONE or is_version_too_large(error):
                self._version = ""
                return self._backoff.pause(is_failure=False)
            if self.resource.optional and error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                return self._take_absence(error)
            self._may_wake = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not error.retry_after_s
            self._fail(error.status, _sentence(error))
            return max(self._backoff.pause(), error.retry_after_s)
        except Exception as error:
            if not self._failing_since:
                log.exception(
                    "an answer of the Kubernetes API was not processed", extra={"resource": self.resource.name}
                )
            self._version, self._is_doubtful = "", True
            self._fail(None, f"an answer was not processed: {str(error) or type(error).__name__}")
        else:
            return self._backoff.pause(is_failure=False)
        return self._backoff.pause()

    async def _follow(self) -> None:
        if self._version and self._is_doubtful:
            await self._compare_versions()
        if self._version or self._pages_next or not self._streams_lists:
            if not self._version:
                await self._list()
            await self._watch()
            return
        try:
            await self._watch()
        except ApiError as error:
            if error.status not in NO_WATCH_LIST or self._version:
                raise
            self._streams_lists = False
            await self._list()
            await self._watch()

    async def _compare_versions(self) -> None:
        """Require a list if the server is behind the cache: a watch from there would get no events until it has caught up."""
        self._verb = "list"
        page = await self._get_page(self.resource.query | {"limit": "1"})
        if is_older(page.metadata.resourceVersion, self._version):
            self._version = ""
        self._is_doubtful = False

    async def _check_server(self) -> None:
        """Compare the server with that of the cached versions. Raises OtherServer: everything must be listed again.

        Called after an answer began and before its objects are used, when a connection to another server can be detected.
        """
        uid = await self._history.read_uid()
        if not uid or uid == self._server:
            return
        before, self._server = self._server, uid
        if before:
            log.warning("another API server answers: all is listed again", extra={"resource": self.resource.name})
            self.cache.forget_versions()
            self._version = self._newest = ""
            self._is_behind, self._streams_lists = False, True
            raise OtherServer

    # --- a list, in pages ---

    async def _list(self) -> None:
        """List all objects. If pages expire in between, it lists again as one page."""
        self._verb = "list"
        draft, version = await self._read_pages()
        await self._check_server()
        self._pages_next = False
        self._accept(draft, version)

    async def read_again(self) -> tuple[Draft, str]:
        """Return a new list, which changes nothing here, with its version; an unchanged object is that of the cache.

        Raises ServerUnreachable where another server answers, UnreadableAnswer, and the errors of the client.
        """
        try:
            draft, version = await self._read_pages()
        except ApiError as error:
            if self.resource.optional and error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                return self.cache.draft(), ""
            raise
        uid = await self._history.read_uid()
        if uid and self._server and uid != self._server:
            self.list_again()
            raise ServerUnreachable("another API server answers, and its objects are listed")
        return draft, version

    def heard_before(self, version: str) -> float:
        """Return when the watch sent data last, monotonic seconds, if it certainly has not come to this version yet; else 0."""
        return self._received_at if is_older(self._version, version) else 0.0

    async def _read_pages(self) -> tuple[Draft, str]:
        draft: Draft = {}
        limit, token = {"limit": str(self._timing.page)}, ""
        while True:
            query = self.resource.query | limit | ({"continue": token} if token else {})
            try:
                page = await self._get_page(query)
            except ApiError as error:
                if error.status != HTTPStatus.GONE or not token:
                    raise
                draft, limit, token = {}, {}, ""
                continue
            items = page.items or []
            for at in range(0, len(items), DECODE_BATCH):
                for raw in items[at : at + DECODE_BATCH]:
                    self.cache.add_to(draft, raw)
                await asyncio.sleep(0)
            token = page.metadata.continue_
            if not token:
                return draft, page.metadata.resourceVersion

    async def _get_page(self, query: dict[str, str]) -> ListPage:
        async with self._client.get(self.resource.path, query, silence_s=self._timing.list_silence_s) as answer:
            body = await answer.read()
        return page_of(body)

    def _accept(self, draft: Draft, version: str) -> None:
        """Apply a whole list. One that is older than an earlier one is requested again, once."""
        if is_older(version, self._newest) and not self._is_behind:
            self._is_behind = True
            raise UnreadableAnswer("the list is older than what the server gave before")
        self._is_behind = False
        self._absent = 0
        self._version = self._newest = version
        self._on_list(draft)
        self.listed.set()
        self._succeed()

    # --- a watch ---

    async def _watch(self) -> None:
        """Follow events until the server ends the watch. Without a version the events of a whole list come first."""
        self._verb = "watch"
        draft: Draft | None = None if self._version else {}
        asked_s = random.randint(*self._timing.watch_s)
        query = self.resource.query | {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(asked_s)}
        query |= (
            {"resourceVersion": self._version}
            if draft is None
            else {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        )
        self._received_at = opened = time.monotonic()
        try:
            async with self._client.get(self.resource.path, query, silence_s=self._timing.silence_s) as answer:
                await self._check_server()
                draft = await self._take_all(answer, draft)
        except ServerUnreachable:
            if self._received_at == opened and time.monotonic() - opened >= self._timing.silence_s:
                # Without a bookmark, it may wait for a version that a server restored from a backup has not reached.
                self._version = ""
            raise
        self._is_doubtful = time.monotonic() - opened < asked_s - 1
        if draft is not None:
            raise ServerUnreachable("the connection ended in the middle of a list")

    async def _take_all(self, answer: Answer, draft: Draft | None) -> Draft | None:
        """Apply all events of a watch until it ends; return the list if it is incomplete then."""
        is_listed = draft is None
        lives = asyncio.get_running_loop().call_later(self._timing.alive_s, self._succeed) if is_listed else None
        try:
            async for lines in answer.lines():
                self._received_at = time.monotonic()
                for at in range(0, len(lines), DECODE_BATCH):
                    draft = self._take(events_of(lines[at : at + DECODE_BATCH]), draft)
                    await asyncio.sleep(0)
                lines.clear()  # no watch keeps its read lines while it waits
        finally:
            if lives is not None:
                lives.cancel()
        return draft

    def _take(self, events: Iterator[WatchEvent], draft: Draft | None) -> Draft | None:
        """Apply events to the list that is being received (`draft`), else to the cache; return that list while it is incomplete."""
        changes: list[ObjectChange] = []
        try:
            for event in events:
                if event.type == "ERROR":
                    raise error_of(event.object)
                if event.type == "BOOKMARK":
                    draft = self._take_bookmark(event.object, draft)
                elif draft is not None:
                    self._take_initial(event, draft)
                elif change := self._take_event(event):
                    changes.append(change)
        finally:
            if changes:
                self._on_changes(changes)
        if draft is None:
            self._succeed()
        return draft

    def _take_bookmark(self, raw: msgspec.Raw, draft: Draft | None) -> Draft | None:
        meta = metadata_of(raw)
        version = meta.resourceVersion
        if draft is not None:
            if (meta.annotations or {}).get(INITIAL_EVENTS_END) != "true":
                return draft
            self._accept(draft, version)
        elif is_older(version, self._version):
            raise ApiError(HTTPStatus.GONE, "the server went back to an older state")
        else:
            self._version = self._newest = version
            self.cache.forget_tombstones()
        return None

    def _take_initial(self, event: WatchEvent, draft: Draft) -> None:
        if event.type == "DELETED":
            draft.pop(metadata_of(event.object).key, None)
        else:
            self.cache.add_to(draft, event.object)

    def _take_event(self, event: WatchEvent) -> ObjectChange | None:
        meta = metadata_of(event.object)
        change = self.cache.delete(meta) if event.type == "DELETED" else self.cache.put(event.object, meta)
        if not is_older(meta.resourceVersion, self._version):
            self._version = self._newest = meta.resourceVersion
        return change

    # --- calls of the listener ---

    def _on_list(self, draft: Draft) -> None:
        try:
            self._on_list_callback(self, draft)
        except Exception as error:
            raise _ListenerFailed(error) from error

    def _on_changes(self, changes: Sequence[ObjectChange]) -> None:
        try:
            self._on_changes_callback(changes)
        except Exception as error:
            raise _ListenerFailed(error) from error

    # --- failures ---

    def _take_absence(self, error: ApiError) -> float:
        """Treat an optional resource as not installed, or not permitted: it is requested again, rarely."""
        self._absent += 1
        if len(self.cache) and self._absent < MAX_NOT_FOUND_ANSWERS:
            self._fail(error.status, _sentence(error))
            return self._backoff.pause()
        self._version = ""
        self._on_list({})
        self.listed.set()
        if error.status == HTTPStatus.FORBIDDEN:
            self._fail(error.status, _sentence(error))
        else:
            self._succeed()
        return self._timing.absent_s * (0.9 + 0.2 * random.random())

    def _fail(self, status: int | None, text: str) -> None:
        """Record a failure: at once if it needs the operator or there was no list yet, else if it lasts.

        429 is no failure: a starting server answers with it, or one with a new CustomResourceDefinition.
        """
        now = time.monotonic()
        is_first = not self._failing_since
        self._failing_since = self._failing_since or now
        lasts = now - self._failing_since >= self._timing.standing_s
        is_busy = status == HTTPStatus.TOO_MANY_REQUESTS
        if is_busy and is_first:
            log.info("the Kubernetes API requests a pause", extra={"resource": self.resource.name, "answer": text})
        if not (lasts or status in REFUSED or not (self.listed.is_set() or is_busy)):
            return
        before = self.failure
        self.failure = ApiFailure(self.resource, self._verb, status, text)
        if before is None or before.status != status:
            log.error("the Kubernetes API failed", extra={"error": str(self.failure.message)})
            self._on_changes([])

    def _succeed(self) -> None:
        self._failing_since, self._absent = 0.0, 0
        if self.failure is not None:
            self.failure = None
            log.info("the Kubernetes API answers again", extra={"resource": self.resource.name})
            self._on_changes([])


def _sentence(error: ApiError) -> str:
    what = {HTTPStatus.UNAUTHORIZED: "the credentials are refused", HTTPStatus.FORBIDDEN: "it is not allowed"}
    return (
        f"{what.get(HTTPStatus(error.status), 'the API server failed')} ({error})"
        if error.status in _CODES
        else str(error)
    )


_CODES = frozenset(each.value for each in HTTPStatus)


def is_version_too_large(error: ApiError) -> bool:
    """Return whether a request failed because the server is behind the requested version."""
    return TOO_LARGE in error.causes or TOO_LARGE_TEXT in str(error)


class _ListMeta(Struct, gc=False):
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' spelling
    continue_: str = msgspec.field(name="continue", default="")


class ListPage(Struct, gc=False):
    """A page of a list: undecoded objects; `metadata.continue_` is '' in the last one."""

    kind: str
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class WatchEvent(Struct, gc=False):
    """An event of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and its object."""

    type: str
    object: msgspec.Raw


_PAGE = msgspec.json.Decoder(ListPage)
_EVENT = msgspec.json.Decoder(WatchEvent)
_STATUS = msgspec.json.Decoder(Status)


def page_of(body: bytes) -> ListPage:
    """Return a page of a list. Raises UnreadableAnswer for any other answer with status 200."""
    try:
        page = _PAGE.decode(body)
    except DECODING_ERRORS as error:
        raise UnreadableAnswer(f"the list cannot be read: {decoding_problem(error)}") from None
    if not page.kind.endswith("List") or not page.metadata.resourceVersion:
        raise UnreadableAnswer(f"not a list with a resourceVersion but a {page.kind}")
    return page


def error_of(raw: msgspec.Raw) -> ApiError:
    """Return the error of an ERROR event. Raises UnreadableAnswer."""
    try:
        status = _STATUS.decode(raw)
    except DECODING_ERRORS as error:
        raise UnreadableAnswer(f"an error event cannot be read: {decoding_problem(error)}") from None
    return ApiError(status.code, status.message, causes=status.causes)


def events_of(lines: Sequence[bytes]) -> Iterator[WatchEvent]:
    """Iterate over the events of a watch, one in each line. Raises UnreadableAnswer."""
    for line in lines:
        try:
            yield _EVENT.decode(line)
        except DECODING_ERRORS as error:
            raise UnreadableAnswer(f"an event cannot be read: {decoding_problem(error)}") from None
