"""Reads hosts and their container runtimes, and executes the steps that change them, on this host or by ssh.

Import the names below: `observe` and `server_health` read, `carry_out` and `carry_out_all` change. A runtime is Docker's or
podman's service. Which steps are needed is not here (`apilb/instance_plan.py`).
"""

from lbagent.apilb.hosts.container_step import PartlyDone
from lbagent.apilb.hosts.host_steps import carry_out, carry_out_all
from lbagent.apilb.hosts.observe_hosts import observe
from lbagent.apilb.hosts.server_health import server_health

__all__ = ["PartlyDone", "carry_out", "carry_out_all", "observe", "server_health"]
