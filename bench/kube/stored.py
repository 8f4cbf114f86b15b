"""The form of an API server's objects in etcd, and direct writes to etcd."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from tests.kube_api.control_plane import ControlPlane

Obj = dict[str, Any]


def stored(plane: ControlPlane, path: str) -> Obj:
    """Return an object of the API in its stored form."""
    obj = dict(plane.ask("GET", path))
    del obj["metadata"]["resourceVersion"]
    obj["metadata"].pop("managedFields", None)
    return obj


def value(obj: Obj) -> str:
    """Return an object for etcd's gateway: the server also reads JSON, although it writes protobuf."""
    return _coded(json.dumps(obj))


def put(key: str, text: str) -> str:
    """Return one operation of a transaction; `text` is what `value` returned."""
    return json.dumps({"requestPut": {"key": _coded(key), "value": text}})


def transaction(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the request that writes these keys and values at once."""
    return f'{{"success": [{", ".join(put(*pair) for pair in pairs)}]}}'


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
