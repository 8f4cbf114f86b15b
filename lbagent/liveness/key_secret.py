"""Fills the Secret of the echo's key: the manifests create it empty, and the first agent of a cluster writes a random key.

The kubelet then writes it to the file of --liveness-key-file on each node. A key that is there is never changed. Of agents that
write at the same time the server takes the first one: each write names the version that it has read.
"""

from __future__ import annotations

import base64
import logging
import secrets
from http import HTTPStatus

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.errors import LbError
from lbagent.kube.kube_client import ApiError, KubeClient
from lbagent.kube.kube_settings import own_namespace

log = logging.getLogger(__name__)
SECRET, ITEM = "lbagent-liveness", "key"
KEY_BYTES = 32
SILENCE_S = 5.0


class _Meta(Struct, rename="camel"):
    resource_version: str = ""


class _Secret(Struct):
    metadata: _Meta
    data: dict[str, str] | None = None


async def fill_key_secret(client: KubeClient) -> bool:
    """Write a key if the Secret is there without one; return whether it has one now. Raises LbError if the server is away."""
    path = f"/api/v1/namespaces/{own_namespace()}/secrets/{SECRET}"
    try:
        async with client.get(path, {}, silence_s=SILENCE_S) as answer:
            found = msgspec.json.decode(await answer.read(), type=_Secret)
        if (found.data or {}).get(ITEM):
            return True
        key = base64.b64encode(
            base64.b64encode(secrets.token_bytes(KEY_BYTES))
        ).decode()  # text, in the Secret's own encoding
        patch = {"metadata": {"resourceVersion": found.metadata.resource_version}, "data": {ITEM: key}}
        await client.patch(path, patch, silence_s=SILENCE_S)
    except ApiError as error:
        if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
            return False  # the key comes from elsewhere
        if error.status == HTTPStatus.CONFLICT:
            return True
        raise
    except DECODING_ERRORS as error:
        raise LbError(f"the Secret {SECRET} cannot be read: {error}") from None
    log.info("the key of the echo was made", extra={"secret": SECRET})
    return True
