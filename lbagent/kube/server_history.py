"""Identifies the API server. Versions of objects belong to one etcd, and another one may answer later at the same address.

The uid of the namespace kube-system identifies a server: it is created once, with the cluster, and a restored backup keeps it.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.kube.kube_client import ApiError, KubeClient
from lbagent.kube.object_cache import UnreadableAnswer

log = logging.getLogger(__name__)
PATH = "/api/v1/namespaces/kube-system"
NOT_READABLE = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


class _Meta(Struct):
    uid: str


class _Namespace(Struct):
    metadata: _Meta


class ServerHistory:
    """Reads the uid. Shared by the reflectors of a source, so that a missing permission is logged once."""

    def __init__(self, client: KubeClient, silence_s: float) -> None:
        self._client, self._silence_s = client, silence_s
        self._is_refused = False

    async def read_uid(self) -> str:
        """Return the uid of the server that answers now, '' if it cannot be read.

        Raises UnreadableAnswer and the errors of the client.
        """
        try:
            # Version 0: the API server's cache is enough, as a uid never changes. No read of etcd.
            async with self._client.get(PATH, {"resourceVersion": "0"}, silence_s=self._silence_s) as answer:
                data = await answer.read()
        except ApiError as error:
            if error.status not in NOT_READABLE:
                raise
            if not self._is_refused:
                self._is_refused = True
                text = "another API server behind the same address is not noticed: allow this user to get the namespace kube-system"
                log.warning(text, extra={"error": str(error)})
            return ""
        self._is_refused = False
        try:
            return msgspec.json.decode(data, type=_Namespace).metadata.uid
        except DECODING_ERRORS as error:
            raise UnreadableAnswer(f"the namespace kube-system cannot be read: {decoding_problem(error)}") from None
