"""Ten thousand Services with their slices in seconds: written into etcd, as tens of thousands of POSTs to the API server take many minutes.

The first one is created through the API. The others are copies of the stored object with their own names, addresses and uids. The
server reads them from etcd and sends them to its watches, as always.
"""

from __future__ import annotations

import http.client
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from bench.kube.bulk_objects import ENDPOINTS, PORTS, SERVICES, SLICES, numbered, vip, written
from bench.kube.stored import stored, transaction, value
from tests.kube_api.control_plane import ETCD, ControlPlane

Obj = dict[str, Any]
ADDRESSES = "/apis/networking.k8s.io/v1/ipaddresses"
AT_ONCE = 40  # Services a transaction: etcd takes 128 operations
ANSWER_S = 60.0


def fill(plane: ControlPlane, numbers: range, endpoints: int = ENDPOINTS, ports: int = len(PORTS)) -> None:
    """Create the Services with these numbers, with their slices. Raises RuntimeError with etcd's answer."""
    if not numbers:
        return
    first = numbers[0]
    written(plane, [numbered(first, endpoints, ports)])
    paths = (f"{SERVICES}/s{first}", f"{SLICES}/s{first}-a", f"{ADDRESSES}/{vip(first)}")
    models = [stored(plane, path) for path in paths]
    place = urlsplit(ETCD)
    etcd = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_S)
    plane.namespace.call(etcd.connect)
    try:
        for at in range(first + 1, numbers[-1] + 1, AT_ONCE):
            copies = [
                pair
                for number in range(at, min(at + AT_ONCE, numbers[-1] + 1))
                for pair in _copies(models, number, numbered(number, endpoints, ports))
            ]
            etcd.request("POST", "/v3/kv/txn", transaction((key, value(obj)) for key, obj in copies))
            answer = etcd.getresponse()
            text = answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise RuntimeError(f"etcd: {answer.status} {text[:300]!r}")
    finally:
        etcd.close()


def _copies(models: list[Obj], number: int, pair: tuple[Obj, Obj]) -> Iterator[tuple[str, Obj]]:
    """Yield the keys in etcd and the objects of a Service: itself, its slice, and the address that is allocated to it."""
    service, ends, address = models
    made, slices = pair
    name, ip = made["metadata"]["name"], vip(number)
    own = {key: made["spec"][key] for key in ("clusterIP", "selector")}
    yield (
        f"/registry/services/specs/default/{name}",
        _named(service, made, spec=service["spec"] | own | {"clusterIPs": [ip]}),
    )
    yield f"/registry/endpointslices/default/{name}-a", _named(ends, slices, endpoints=slices["endpoints"])
    parent = address["spec"]["parentRef"] | {"name": name}
    yield f"/registry/ipaddresses/{ip}", _named(address, {"metadata": {"name": ip}}, spec={"parentRef": parent})


def _named(model: Obj, like: Obj, **fields: Any) -> Obj:
    meta = model["metadata"] | like["metadata"] | {"uid": str(uuid.uuid4())}
    meta["labels"] = model["metadata"].get("labels", {}) | like["metadata"].get("labels", {})
    return model | fields | {"metadata": meta}
