"""The objects of one resource as last received from the server: lists are compared with it, events change it. Nothing here waits.

Versions are compared as numbers if they are numbers (KEP-5504): an older version changes nothing, so repeated or reordered events
result in the contents of a fresh list.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.errors import LbError
from lbagent.kube.resources import Resource
from lbagent.model.message import Message
from lbagent.objects.decode.decode_object import decode_json
from lbagent.objects.decode.report import seconds
from lbagent.objects.records import KUBE, EndpointSlice, KubeObject, LastGoodObject, ObjectChange, Origin, Pod

ORIGIN = Origin(source=KUBE)
MAX_TOMBSTONES = 10_000
TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"  # set by the EndpointSlice controller


class UnreadableAnswer(LbError):
    """The server's answer does not conform to the API."""


class ObjectMeta(Struct, gc=False):
    """The fields of metav1.ObjectMeta that identify an object and its version."""

    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' spelling
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> str:
        """Namespace and name in one text; the name of an object without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class _Head(Struct, gc=False):
    metadata: ObjectMeta


_HEAD = msgspec.json.Decoder(_Head)


class CachedObject(Struct, frozen=True, gc=False):
    """An object at a version; `obj` is None if it cannot be used at all. `kept` are older parts, by field.

    `triggered_at` is the time of its event: seconds since 1970, 0 = unknown.
    """

    version: str
    obj: KubeObject | None
    messages: tuple[Message, ...] = ()
    generation: int = 0
    kept: Mapping[str, int] = MappingProxyType({})
    triggered_at: float = 0.0


Draft = dict[str, CachedObject]  # a list that is being received, by key


def metadata_of(raw: msgspec.Raw | bytes) -> ObjectMeta:
    """Return the metadata of an object. Raises UnreadableAnswer."""
    try:
        return _HEAD.decode(raw).metadata
    except DECODING_ERRORS as error:
        raise UnreadableAnswer(f"an object without readable metadata: {decoding_problem(error)}") from None


def is_older(version: str, than: str) -> bool:
    """Return whether a resourceVersion is certainly older than another one."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


Refine = Callable[[KubeObject | None, msgspec.Raw | bytes], KubeObject | None]


def _for_all_nodes(obj: KubeObject | None, _raw: msgspec.Raw | bytes) -> KubeObject | None:
    """Leave out the weight of a Pod: only its own node reads the Pod, and weights that differ by node give different tables."""
    return replace(obj, weight=None) if isinstance(obj, Pod) and obj.weight is not None else obj


class ObjectCache:
    """All objects of a resource."""

    def __init__(
        self, resource: Resource, generation: Callable[[], int] = lambda: 0, refine: Refine = _for_all_nodes
    ) -> None:
        """`generation` returns the number of the next batch of changes, for messages about kept parts of an object.

        `refine` makes the cached form of a decoded object and its JSON.
        """
        self._kind = resource.kind
        self._generation = generation
        self._refine = refine
        self._entries: Draft = {}
        self._tombstones: dict[str, str] = {}  # key -> version at which it was deleted
        self._faulty: set[str] = set()  # keys of objects that have messages
        self.held: frozenset[str] = frozenset()  # keys missing in the last list that are kept

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def keys(self) -> KeysView[str]:
        """All objects, including kept ones."""
        return self._entries.keys()

    @property
    def objects(self) -> dict[str, KubeObject]:
        """The usable objects, by key."""
        return {key: entry.obj for key, entry in self._entries.items() if entry.obj is not None}

    def get(self, key: str) -> KubeObject | None:
        """Return an object; None: it does not exist, or cannot be used."""
        entry = self._entries.get(key)
        return entry.obj if entry else None

    def version_of(self, key: str) -> str:
        """Return the resourceVersion of an object, '' if it does not exist."""
        entry = self._entries.get(key)
        return entry.version if entry else ""

    @property
    def messages(self) -> list[Message]:
        """The problems of the objects, in the order of their keys."""
        return [message for key in sorted(self._faulty) for message in self._entries[key].messages]

    def add_to(self, draft: Draft, raw: msgspec.Raw | bytes) -> None:
        """Decode an object of a list. Raises UnreadableAnswer."""
        meta = metadata_of(raw)
        key = meta.key
        known = self._entries.get(key)
        unchanged = known is not None and meta.resourceVersion and known.version == meta.resourceVersion
        draft[key] = known if unchanged and known is not None else self._decode(raw, meta, known)

    def missing(self, draft: Draft) -> frozenset[str]:
        """Return the keys that are missing in a whole list."""
        return frozenset(self._entries.keys() - draft.keys())

    def draft(self) -> Draft:
        """Return the objects in the form of a list."""
        return dict(self._entries)

    def behind(self, draft: Draft) -> set[str]:
        """Return the keys of a whole list at which the cache has no object, or an older or other version of it.

        Also those of objects that the list lacks, except kept ones. Objects that were deleted since the list count as behind.
        """
        entries = self._entries
        found = {key for key, listed in draft.items() if self._is_behind(entries.get(key), listed)}
        return found | (entries.keys() - draft.keys() - self.held)

    def _is_behind(self, known: CachedObject | None, listed: CachedObject) -> bool:
        if known is listed:
            return False
        return known is None or not (known.version == listed.version or is_older(listed.version, known.version))

    def change_to(self, key: str, draft: Draft) -> ObjectChange | None:
        """Return the change that leads to the object of a list; None where it is none."""
        return self._change(key, self._entries.get(key), draft.get(key))

    def accept(self, draft: Draft, hold: frozenset[str] = frozenset()) -> list[ObjectChange]:
        """Apply a whole list but keep the objects of `hold`, which it lacks; return the changes."""
        old, self.held = self._entries, hold
        self._entries = draft | {key: old[key] for key in hold}
        self._tombstones.clear()
        self._faulty = {key for key, entry in self._entries.items() if entry.messages}
        changes = [self._change(key, old.get(key), entry) for key, entry in self._entries.items()]
        changes += [self._change(key, entry, None) for key, entry in old.items() if key not in self._entries]
        return [change for change in changes if change is not None]

    def release(self) -> list[ObjectChange]:
        """Remove the kept objects."""
        changes = [self._change(key, self._entries.pop(key), None) for key in sorted(self.held)]
        self._faulty -= self.held
        self.held = frozenset()
        return [change for change in changes if change is not None]

    def put(self, raw: msgspec.Raw | bytes, meta: ObjectMeta) -> ObjectChange | None:
        """Apply an event that an object was added or modified; `meta` is its metadata."""
        key, version = meta.key, meta.resourceVersion
        old = self._entries.get(key)
        if is_older(version, self._tombstones.get(key, "")):
            return None
        if old is not None and key not in self.held and (old.version == version or is_older(version, old.version)):
            return None
        self._tombstones.pop(key, None)
        self.held -= {key}
        new = self._entries[key] = self._decode(raw, meta, old)
        (self._faulty.add if new.messages else self._faulty.discard)(key)
        return self._change(key, old, new)

    def delete(self, meta: ObjectMeta) -> ObjectChange | None:
        """Apply an event that the object with this metadata was deleted."""
        key, version = meta.key, meta.resourceVersion
        old = self._entries.get(key)
        if old is not None and is_older(version, old.version):
            return None
        if len(self._tombstones) < MAX_TOMBSTONES and not is_older(version, self._tombstones.get(key, "")):
            self._tombstones[key] = version
        if old is None:
            return None
        del self._entries[key]
        self._faulty.discard(key)
        self.held -= {key}
        return self._change(key, old, None)

    def forget_versions(self) -> None:
        """Forget the versions of objects: those of another server cannot be compared with them."""
        self._entries = {key: replace(entry, version="") for key, entry in self._entries.items()}
        self._tombstones.clear()

    def forget_tombstones(self) -> None:
        """Forget deleted objects: from now on the server sends nothing older."""
        self._tombstones.clear()

    def _decode(self, raw: msgspec.Raw | bytes, meta: ObjectMeta, known: CachedObject | None) -> CachedObject:
        def last(_kind: str, _key: str) -> LastGoodObject | None:
            return LastGoodObject(known.obj, known.generation, known.kept) if known and known.obj else None

        decoded = decode_json(self._kind, raw, ORIGIN, last)
        version, messages = meta.resourceVersion, decoded.messages
        if decoded.last is not None:
            return CachedObject(version, decoded.last.obj, messages, decoded.last.generation, decoded.last.parts)
        obj, triggered_at = self._refine(decoded.obj, raw), _triggered_at(meta)
        if known and isinstance(known.obj, EndpointSlice) and isinstance(obj, EndpointSlice):
            obj = _with_known_endpoints(obj, known.obj)
        return CachedObject(version, obj, messages, self._generation(), decoded.kept, triggered_at)

    def _change(self, key: str, old: CachedObject | None, new: CachedObject | None) -> ObjectChange | None:
        before, after = old.obj if old else None, new.obj if new else None
        if before == after:
            return None
        return ObjectChange(self._kind, key, before, after, new.triggered_at if new else 0.0)


def _with_known_endpoints(new: EndpointSlice, old: EndpointSlice) -> EndpointSlice:
    """Return a slice with the equal endpoints of its old form: a burst of changes then uses no more memory."""
    known = {each.address: each for each in old.endpoints}
    kept = [before if (before := known.get(each.address)) == each else each for each in new.endpoints]
    return replace(new, endpoints=tuple(kept))


def _triggered_at(meta: ObjectMeta) -> float:
    """Return when the endpoints of an EndpointSlice changed, by its annotation; 0 for an invalid time."""
    if not meta.annotations or (text := meta.annotations.get(TRIGGER_TIME)) is None:
        return 0.0
    try:
        return seconds(text)
    except ValueError:
        return 0.0
