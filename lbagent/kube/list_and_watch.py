"""What lists and watches of the API consist of. Source: Kubernetes API concepts, metav1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.kube.kube_client import ApiError, Status
from lbagent.kube.object_cache import UnreadableAnswer


class _ListMeta(Struct, gc=False):
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' spelling
    continue_: str = msgspec.field(name="continue", default="")


class ListPage(Struct, gc=False):
    """A page of a list: some objects, undecoded; `metadata.continue_` is '' in the last one."""

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
    """Return a page of a list. Raises UnreadableAnswer for anything else that came with status 200."""
    try:
        page = _PAGE.decode(body)
    except DECODING_ERRORS as error:
        raise UnreadableAnswer(f"the list cannot be read: {decoding_problem(error)}") from None
    if not page.kind.endswith("List") or not page.metadata.resourceVersion:
        raise UnreadableAnswer(f"not a list with a resourceVersion but a {page.kind}")
    return page


def error_of(raw: msgspec.Raw) -> ApiError:
    """Return the error that an ERROR event tells. Raises UnreadableAnswer."""
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
