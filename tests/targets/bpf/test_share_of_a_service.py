"""What `plan` prints of Services with too many frontends, and that it gives ids by age only where they are short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lbagent.model.service import SVCType
from lbagent.targets.bpf.dry_run import dry_run


def service(name: str, created: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "shop"} | ({"creationTimestamp": created} if created else {})
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def write(folder: Path, *objects: dict[str, Any]) -> str:
    path = folder / "all.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return str(folder)


def test_a_service_with_too_many_frontends_is_named(tmp_path: Path) -> None:
    """A ClusterIP and three externalIPs with two ports each: five frontends have room, the sixth does not."""
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 443}]
    addresses = ["203.0.113.1", "203.0.113.2", "203.0.113.3"]
    many = service("many", "", clusterIP="10.96.0.1", externalIPs=addresses, ports=ports)
    done = dry_run(write(tmp_path, many), max_frontends=5)
    frontends = [svc.frontend for svc in done.state.services if not svc.wildcard]
    assert [str(each) for each in frontends] == [
        "10.96.0.1:80", "10.96.0.1:443", "203.0.113.1:80", "203.0.113.1:443", "203.0.113.2:80"
    ]  # fmt: skip
    (message,) = done.messages
    assert (message.subject, message.field) == ("Service shop/many", "spec.externalIPs[1]")
    assert "more than 5 frontends (address, port and protocol)" in str(message)
    assert "203.0.113.2:443/TCP and up to 2 more are left out (--max-frontends-per-service)" in str(message)
    assert done.exit_code == 1
    assert dry_run(str(tmp_path), max_frontends=8).messages == []


def test_a_frontend_that_is_left_out_is_free_for_another_service(tmp_path: Path) -> None:
    ports = [{"port": 80}]
    many = service("many", "2020-01-01T00:00:00Z", externalIPs=["203.0.113.1", "203.0.113.2"], ports=ports)
    other = service("other", "2024-01-01T00:00:00Z", clusterIP="10.96.0.2", externalIPs=["203.0.113.2"], ports=ports)
    done = dry_run(write(tmp_path, many, other), max_frontends=1)
    found = {str(svc.frontend): svc.name.name for svc in done.state.services if not svc.wildcard}
    assert found == {"203.0.113.1:80": "many", "10.96.0.2:80": "other"}


def test_ids_follow_the_files_where_there_is_one_for_each(tmp_path: Path) -> None:
    """The younger externalIP stands first in the file."""
    ports = [{"port": 80}]
    young = service("young", "2024-01-01T00:00:00Z", externalIPs=["203.0.113.1"], ports=ports)
    old = service("old", "2020-01-01T00:00:00Z", clusterIP="10.96.0.2", ports=ports)
    rows = [svc for svc in dry_run(write(tmp_path, young, old)).state.services if not svc.wildcard]
    assert [(svc.id, svc.name.name, svc.type) for svc in rows] == [
        (1, "young", SVCType.EXTERNAL_IPS), (2, "old", SVCType.CLUSTER_IP)
    ]  # fmt: skip
    assert rows[0].created > rows[1].created > 0
