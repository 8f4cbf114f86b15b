"""Hosts and their container runtimes: what they have, and the steps that let them have what is wanted.

`observe` and `server_health` look, `carry_out` and `carry_out_all` change. Hosts are reached directly or by ssh (`host.py`);
a runtime is Docker or podman's service.
"""

from lbagent.apilb.hosts.container_step import PartlyDone
from lbagent.apilb.hosts.host_steps import carry_out, carry_out_all
from lbagent.apilb.hosts.observe_hosts import observe
from lbagent.apilb.hosts.server_health import server_health

__all__ = ["PartlyDone", "carry_out", "carry_out_all", "observe", "server_health"]
