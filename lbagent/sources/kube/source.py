"""The Kubernetes API as a source: a reflector for each resource, and their combination.

No object is reported before every resource was listed once, except that optional ones are waited for only a moment. An agent that
continues from the maps of an earlier one waits only a moment, too: it continues untrusted, so that all entries stay, and follows
the network and the devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.errors import LbError, NotFound, TimedOut
from lbagent.kube.api_failure import failure_message, not_read
from lbagent.kube.event_writer import EventWriter
from lbagent.kube.kube_client import KubeClient
from lbagent.kube.kube_settings import KubeSettings
from lbagent.kube.object_cache import Draft, ObjectCache, ObjectMeta
from lbagent.kube.reflector import Reflector
from lbagent.kube.resources import NODES, Resource, resources
from lbagent.kube.server_contact import ServerContact
from lbagent.kube.server_history import ServerHistory
from lbagent.model.message import Message
from lbagent.objects.message_log import MessageLog
from lbagent.objects.object_event import ObjectEvent
from lbagent.objects.records import FIELD_OF_KIND, KUBE, KubeObject, ObjectChange, ObjectSnapshot
from lbagent.objects.source import Missed, OnChange, initial_changes
from lbagent.sources.kube.deletion_guard import ServiceNames, needs_confirmation

log = logging.getLogger(__name__)
MAX_NAMED_NODES = 20
LOOK_S = 0.1  # between two looks whether the watch has caught up
CONFIRM = "if it was deleted on purpose, set --max-delete-ratio to 100, send SIGHUP, and set it back"
REACH = "see that the API server can be reached and lets this agent list and watch; it is tried again by itself"
NOT_LISTED = Message("the API server has not listed everything yet", "what the maps hold is served")


class _NodeItem(Struct):
    metadata: ObjectMeta


class _NodeList(Struct):
    items: list[_NodeItem] | None = None


class KubeSource:
    """The objects of the API server."""

    name = KUBE

    def __init__(self, settings: KubeSettings) -> None:
        """Raises ConfigError if the kubeconfig, or the service account of a Pod, is missing."""
        settings.check()
        self.synced = asyncio.Event()
        self._settings = settings
        self._max_delete_ratio = settings.max_delete_ratio
        self._client = KubeClient(settings)
        self.events = EventWriter(self._client, settings.node_name)
        self._history = ServerHistory(self._client, settings.timing.list_silence_s)
        self._reflectors = [self._reflector(each) for each in resources(settings.node_name)]
        self._services = self._reflectors[0].cache
        self._names = ServiceNames(settings.state_dir, lambda: self._services.keys | self._remembered)
        self._resumes = False
        self._remembered: frozenset[str] = frozenset()  # Services of an earlier agent that no list has had yet
        self._needed_listed = asyncio.Event()  # all except optional ones
        self._all_listed = asyncio.Event()
        self._is_given = False  # the first lists were given
        self._was_held = ""  # the text of the last Event about waiting deletions
        self._generation = 0
        self._on_change: OnChange | None = None
        self._message_log = MessageLog(log, "object of the API refused")

    def _reflector(self, resource: Resource) -> Reflector:
        cache = ObjectCache(resource, lambda: self._generation + 1)
        return Reflector(
            self._client,
            resource,
            self._settings.timing,
            cache,
            history=self._history,
            on_list=self._take_list,
            on_changes=self._publish,
        )

    @property
    def contact(self) -> ServerContact:
        """Ends the pauses of other clients when the server answers."""
        return self._client.contact

    # --- the protocol of a source ---

    remembered = False  # it stores only names

    @property
    def trusted(self) -> bool:
        """Whether every resource was listed and is followed, and no deletion waits for a confirmation."""
        return self.distrust is None

    @property
    def distrust(self) -> Message | None:
        """Why the lists are not trusted, in one message."""
        own = self._own_problem()
        return own if own or self._is_given else NOT_LISTED

    @property
    def listed(self) -> bool:
        """Whether every resource was listed: objects of a list are current, while missing ones may wait for a confirmation."""
        return self._is_given

    @property
    def held(self) -> int:
        """The number of objects missing in the last lists, which are kept until their deletion is confirmed."""
        return len(self._remembered) + sum(len(each.cache.held) for each in self._reflectors)

    def snapshot(self) -> ObjectSnapshot:
        """Return every object; none before the first lists are whole."""
        if not self._is_given:
            return ObjectSnapshot()
        kinds: dict[str, dict[str, KubeObject]] = {
            FIELD_OF_KIND[each.resource.kind]: each.cache.objects for each in self._reflectors
        }
        return ObjectSnapshot(**kinds)  # type: ignore[arg-type]

    def problems(self) -> Sequence[Message]:
        """Return failures, deletions that wait for a confirmation, and problems of objects."""
        own = self._own_problem()
        absent = [message for each in self._reflectors if (message := self._absence(each))]
        refused = [message for each in self._reflectors for message in each.cache.messages]
        return [*([own] if own else ()), *absent, *refused]

    def _absence(self, reflector: Reflector) -> Message | None:
        """Return the problem of an optional resource. A server that does not answer is reported once."""
        resource, failure = reflector.resource, reflector.failure
        if not resource.optional:
            return None
        if failure and failure.status:
            return failure.message
        if not self._is_given or reflector.listed.is_set() or self._own_problem():
            return None
        if failure:
            return failure.message
        return Message("no list of them yet", not_read(resource), kind="list", key=resource.name, warning=True)

    @property
    def remedy(self) -> str:
        """The remedy for a list that is not trusted, or a server that does not answer."""
        return CONFIRM if self._held_text() else REACH

    def _own_problem(self) -> Message | None:
        """Return why the source is not trusted, in one message."""
        failures = [each.failure for each in self._reflectors if each.failure and not each.resource.optional]
        failing, held = failure_message(failures), self._held_text()
        if not held:
            if failing is None and not self._is_given and self.synced.is_set():  # the server sends nothing
                return NOT_LISTED
            return failing
        return Message(f"{held}; {failing.problem}" if failing else held, "what was there is kept")

    def resume(self) -> None:
        """Read the Services of an earlier agent: a first list without most of them waits for a confirmation."""
        self._resumes = True
        self._remembered = self._names.recall()

    async def run(self, on_change: OnChange) -> None:
        """List and watch until cancelled. Raises NotFound if the server has other nodes, but not this one."""
        self._on_change = on_change
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in self._reflectors:
                    tasks.create_task(reflector.run())
                tasks.create_task(self._names.run())
                tasks.create_task(self.events.run())
                await self._give_first_lists(tasks.create_task(self._wait_for_lists()))
        finally:
            await self._client.close()

    def set_max_delete_ratio(self, percent: int) -> None:
        """Use a new limit from now on; waiting deletions within it take effect."""
        self._max_delete_ratio = percent
        if self._remembered and not self._is_too_much(self._services, self._remembered):
            self._remembered = frozenset()
            self._names.note()
        self._publish([])
        for reflector in self._reflectors:
            cache = reflector.cache
            if cache.held and not needs_confirmation(len(cache), len(cache.held), percent):
                self._publish(cache.release())

    # --- first lists ---

    async def _wait_for_lists(self) -> None:
        """Wait for every list, but only for a while for optional ones: these are used when they arrive."""
        await self._needed_listed.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timing.optional_s):
                await self._all_listed.wait()
        for reflector in self._reflectors:
            if not reflector.listed.is_set():
                fields = {"resource": reflector.resource.name}
                log.warning(
                    "the Kubernetes API does not list an optional resource: the agent continues without it",
                    extra=fields,
                )

    async def _give_first_lists(self, lists: asyncio.Task[None]) -> None:
        if self._resumes:
            await asyncio.wait({lists}, timeout=self._settings.timing.first_list_s)
            if not lists.done():
                log.warning("no list of the Kubernetes API yet: what the maps hold is served")
                self._notify_listener([])
                self.synced.set()
        await lists
        await self._require_node()
        self._is_given = True
        self._measure_remembered()
        self._publish(initial_changes(self.snapshot()))
        self.synced.set()

    async def _require_node(self) -> None:
        """Reject a node name without a Node, if there are other Nodes: an empty server proves nothing about names."""
        (nodes,) = (each.cache for each in self._reflectors if each.resource.path == NODES)
        name = self._settings.node_name
        if len(nodes):
            return
        try:
            async with self._client.get(NODES, {"limit": "500"}, silence_s=10.0) as answer:
                found = msgspec.json.decode(await answer.read(), type=_NodeList)
        except (LbError, *DECODING_ERRORS) as error:
            log.warning("no Node object with this name; names cannot be listed", extra={"error": str(error)})
            return
        names = sorted(item.metadata.name for item in found.items or ())
        if names and name not in names:  # it may have been created since the list was read
            more = f" and {len(names) - MAX_NAMED_NODES} more" if len(names) > MAX_NAMED_NODES else ""
            raise NotFound(
                f"the API server has no node {name!r}; it has {', '.join(names[:MAX_NAMED_NODES])}{more}."
                " Give this one's name with --node-name; nothing was changed"
            )

    # --- lists and changes ---

    def _take_list(self, reflector: Reflector, draft: Draft) -> None:
        """Use a list; objects that it lacks beyond the limit are kept."""
        cache = reflector.cache
        missing = cache.missing(draft)
        known = len(cache)
        hold = reflector.resource.guarded and needs_confirmation(known, len(missing), self._max_delete_ratio)
        if hold and not cache.held:
            fields = {"resource": reflector.resource.name, "missing": len(missing), "of": known}
            log.error("a list lacks so many objects that they are kept", extra=fields)
        changes = cache.accept(draft, missing if hold else frozenset())
        reflector.listed.set()
        missing_lists = [each.resource for each in self._reflectors if not each.listed.is_set()]
        if all(resource.optional for resource in missing_lists):
            self._needed_listed.set()
        if not missing_lists:
            self._all_listed.set()
        self._measure_remembered()
        self._publish(changes)

    def _publish(self, changes: Sequence[ObjectChange]) -> None:
        """Report changes after the first lists; before only problems."""
        if not self._is_given:
            changes = ()
        if self._remembered and self._is_given:
            self._remembered -= set(self._services.keys)
        self._generation += bool(changes)
        self._notify_listener(changes)
        self._write_held()
        if any(change.kind == "Service" for change in changes):
            self._names.note()
        self._message_log.update([message for each in self._reflectors for message in each.cache.messages])

    def _notify_listener(self, changes: Sequence[ObjectChange]) -> None:
        if self._on_change is not None:
            self._on_change(changes)

    # --- a second list ---

    async def find_missed(self) -> Missed:
        """List every resource again; a change that the watch sends within `catch_up_s` is not missed. Raises TimedOut.

        A watch that sends older events, one after the other, is behind and has missed nothing: it gets `reread_s`.
        """
        if not self._is_given:
            raise TimedOut("the API server has not listed everything yet, so nothing can be compared with it")
        try:
            async with asyncio.timeout(self._settings.timing.reread_s + self._settings.timing.catch_up_s):
                return await self._find_missed()
        except TimeoutError:
            raise TimedOut(
                "the API server does not list its objects, or send their changes, in time, so nothing can be compared with them"
            ) from None
        except LbError as error:
            raise TimedOut(f"the API server does not list its objects: {error}") from None

    async def _find_missed(self) -> Missed:
        drafts, versions, behind = {}, {}, {}
        for reflector in self._reflectors:
            draft, version = await reflector.read_again()
            if keys := reflector.cache.behind(draft):
                drafts[reflector], versions[reflector], behind[reflector] = draft, version, keys
        began, catch_up_s = time.monotonic(), self._settings.timing.catch_up_s
        while behind and time.monotonic() - catch_up_s < max(
            began, *(each.heard_before(versions[each]) for each in behind)
        ):
            await asyncio.sleep(LOOK_S)
            # of these keys alone: an object that the watch has sent since the list is not in it
            left = {each: keys & each.cache.behind(drafts[each]) for each, keys in behind.items()}
            behind = {each: keys for each, keys in left.items() if keys}
        changes: list[ObjectChange] = []
        places = []
        for reflector, first in behind.items():
            draft, _ = await reflector.read_again()  # what was deleted since the first list is in neither
            keys = first & reflector.cache.behind(drafts[reflector]) & reflector.cache.behind(draft)
            if keys:
                places.append(reflector.resource.name)
            if not self._would_hold(reflector, draft):
                found = [reflector.cache.change_to(key, draft) for key in sorted(keys)]
                changes += [change for change in found if change is not None]
        return Missed(tuple(changes), tuple(places))

    def _would_hold(self, reflector: Reflector, draft: Draft) -> bool:
        """Return whether the list lacks so many objects that they are kept."""
        cache = reflector.cache
        missing = len(cache.missing(draft))
        return reflector.resource.guarded and needs_confirmation(len(cache), missing, self._max_delete_ratio)

    def list_again(self, places: Sequence[str]) -> None:
        """List these resources again, and begin new watches."""
        for reflector in self._reflectors:
            if reflector.resource.name in places:
                reflector.list_again()

    # --- deletions that wait ---

    @property
    def _is_empty(self) -> bool:
        """Whether an agent that continues from its maps got no Service at all, and has no record of earlier ones."""
        return self._resumes and self._is_given and not len(self._services) and self._max_delete_ratio < 100

    def _measure_remembered(self) -> None:
        """Compare the Services with those of an earlier agent; an agent without earlier maps has none."""
        if not self._is_given or not self._remembered:
            return
        if not self._is_too_much(self._services, self._remembered):
            self._remembered = frozenset()
        else:
            self._remembered -= set(self._services.keys)

    def _is_too_much(self, services: ObjectCache, remembered: Collection[str]) -> bool:
        there = services.keys
        gone = sum(key not in there for key in remembered)
        known = gone + len(services)
        return needs_confirmation(known, gone, self._max_delete_ratio)

    def _write_held(self) -> None:
        """Write an Event on the own Node when deletions begin to wait for a confirmation."""
        held = self._held_text()
        if held and not self._was_held:
            text = f"{held}; what was there is kept: {CONFIRM}"
            self.events.write(ObjectEvent("Node", self._settings.node_name, "DeletionsHeld", text, warning=True))
        self._was_held = held

    def _held_text(self) -> str:
        """Return which lists are not trusted; '' if all are."""
        missing = [(len(each.cache.held), len(each.cache), each.resource.name) for each in self._reflectors]
        if self._is_given:
            gone = len(self._remembered)
            missing.insert(0, (gone, gone + len(self._services), "services of an earlier agent"))
        found = ", ".join(f"{held} of {known} {what}" for held, known, what in missing if held)
        if found:
            return f"{found} are not in the API server's list any more, too many at once"
        return "the API server lists no Service at all" if self._is_empty else ""
