"""The uid of an object by its name: a list of one, as it needs no other right than the watches have."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from lbagent.kube.kube_client import KubeClient


class _Meta(Struct):
    uid: str = ""


class _Item(Struct):
    metadata: _Meta


class _List(Struct):
    items: list[_Item] | None = None


async def uid_of(client: KubeClient, collection: str, name: str, *, silence_s: float) -> str:
    """Return the uid, "" if there is no such object. Raises the errors of KubeClient, and DECODING_ERRORS for no list."""
    async with client.get(collection, {"fieldSelector": f"metadata.name={name}"}, silence_s=silence_s) as answer:
        body = await answer.read()
    found = msgspec.json.decode(body, type=_List).items or []
    return found[0].metadata.uid if found else ""
