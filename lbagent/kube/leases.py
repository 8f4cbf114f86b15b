"""Leases of coordination.k8s.io: records, reading, writing, and a cache. Its users decide who may write one."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.kube.kube_client import ApiError, KubeClient
from lbagent.kube.object_cache import CachedObject, ObjectCache, ObjectMeta, UnreadableAnswer

API = "coordination.k8s.io/v1"
NAMESPACE = "kube-system"  # of the Leases of announced addresses, whatever the namespace of the agents is
LABEL = "lbagent.io/lease"  # of our Leases: node, vip or live
RELEASED_S = 1  # duration of a released Lease


class LeaseSpec(Struct, rename="camel", omit_defaults=True, frozen=True):
    """metav1's LeaseSpec; times as the server has them, as text."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None

    def held_by(self, holder: str, duration_s: float) -> LeaseSpec:
        """Return the spec that a holder writes now: a renewal, or the first write of the next holder."""
        now, is_same = now_text(), self.holder_identity == holder
        return LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=max(1, round(duration_s)),
            acquire_time=self.acquire_time if is_same else now,
            renew_time=now,
            lease_transitions=(self.lease_transitions or 0) + (not is_same),
        )

    def given_back(self) -> LeaseSpec:
        """Return the spec without a holder, so that another one need not wait."""
        now = now_text()
        return LeaseSpec("", RELEASED_S, acquire_time=now, renew_time=now, lease_transitions=self.lease_transitions)


class Lease(Struct, frozen=True):
    """A Lease; `metadata` is written back unchanged, so that the server rejects a write after another writer's change."""

    metadata: dict[str, Any]
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        return self.metadata.get("annotations") or {}


_LEASE = msgspec.json.Decoder(Lease)


def lease_of(raw: bytes) -> Lease:
    """Return the Lease of an answer. Raises UnreadableAnswer."""
    try:
        return _LEASE.decode(raw)
    except DECODING_ERRORS as error:
        raise UnreadableAnswer(f"a Lease cannot be read: {decoding_problem(error)}") from None


def now_text() -> str:
    """Return the time as a MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Leases:
    """The Leases of a namespace. Raises the errors of KubeClient, and UnreadableAnswer for an answer that is no Lease."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self.path = f"/apis/{API}/namespaces/{namespace}/leases"

    async def get(self, name: str, *, silence_s: float) -> Lease | None:
        """Return a Lease, None if there is none."""
        try:
            async with self._client.get(f"{self.path}/{name}", {}, silence_s=silence_s) as answer:
                return lease_of(await answer.read())
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def create(self, name: str, spec: LeaseSpec, *, silence_s: float, **metadata: Any) -> bytes:
        """Create a Lease; return it. ApiError 409: there is one."""
        meta = {"name": name, "namespace": self._namespace, **metadata}
        body = {"apiVersion": API, "kind": "Lease", "metadata": meta, "spec": msgspec.to_builtins(spec)}
        return await self._client.post(self.path, body, silence_s=silence_s)

    async def replace(self, lease: Lease, spec: LeaseSpec, *, silence_s: float, **metadata: Any) -> bytes:
        """Write a Lease as read, with a new spec; return it. ApiError 409: another writer came first."""
        meta = {**lease.metadata, **metadata}
        body = {"apiVersion": API, "kind": "Lease", "metadata": meta, "spec": msgspec.to_builtins(spec)}
        return await self._client.put(f"{self.path}/{meta['name']}", body, silence_s=silence_s)


class LeaseCache(ObjectCache):
    """Leases in the cache of a reflector."""

    def lease(self, key: str) -> Lease | None:
        """Return a Lease by NAMESPACE/NAME; None: it does not exist, or cannot be read."""
        found: object = self.get(key)
        return found if isinstance(found, Lease) else None

    def _decode(self, raw: msgspec.Raw | bytes, meta: ObjectMeta, known: CachedObject | None) -> CachedObject:
        del known
        try:
            found = _LEASE.decode(raw)
        except DECODING_ERRORS:
            return CachedObject(meta.resourceVersion, None)
        return CachedObject(meta.resourceVersion, found)  # type: ignore[arg-type]
