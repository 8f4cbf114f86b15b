"""The file of native mode: a pool file with one pool and one instance, which apply writes and the host's agent reads (pure)."""

from __future__ import annotations

import json

from lbagent.apilb.instance import Instance
from lbagent.probes.probe_spec import ProbeSpec

HEADER = (
    "# Written by lbagent apilb; the agent of this host reads it. "
    "An edit is drift, which the next apply mends.\n"  # plain words: hosts have this text
)


def native_file(instance: Instance) -> str:
    """Return the text for an instance; the reader of pool files reads it back. Its values are JSON, which is YAML, too."""
    check = instance.health_check or ProbeSpec()
    values = {
        "name": instance.name,
        "mode": str(instance.mode),
        "bindAddress": instance.bind_address,
        "servers": instance.servers,
        "onMarkedDown": str(instance.on_marked_down),
        "healthCheck": {
            "path": check.path,
            "interval": f"{check.interval:.9g}s",
            "timeout": f"{check.timeout:.9g}s",
            "fall": check.fall,
            "rise": check.rise,
            **({"caFile": check.ca_file} if check.ca_file else {}),
            "host": check.host,
        },
        "apiLoadBalancers": [{"host": {"direct": {}}}],
    }
    lines = [f"    {key}: {json.dumps(value)}\n" for key, value in values.items()]
    return "".join([HEADER, "apiLoadBalancerPools:\n", f"  {json.dumps(instance.pool)}:\n", *lines])
