"""Behaviours of a server at a health check, and whether it is up: the same in both modes of apilb."""

from __future__ import annotations

from typing import NamedTuple

from lbagent.probes.probe_protocol import Result


class HealthCase(NamedTuple):
    """One case. `behaviour` is a word of https_server.py, `result` that of lbagent_apilb_checks_total."""

    name: str
    behaviour: str
    up: bool
    result: Result


HEALTH_CASES = (
    HealthCase("200", "200", True, Result.OK),
    HealthCase("204", "204", True, Result.OK),
    HealthCase("302", "302", True, Result.OK),
    HealthCase("400", "400", False, Result.STATUS),
    HealthCase("401", "401", False, Result.STATUS),
    HealthCase("404", "404", False, Result.STATUS),
    HealthCase("500", "500", False, Result.STATUS),
    HealthCase("503", "503", False, Result.STATUS),
    HealthCase("refused", "refused", False, Result.REFUSED),
    HealthCase("black hole", "hole", False, Result.TIMEOUT),
    HealthCase("no TLS", "plain", False, Result.TLS),
    HealthCase("broken handshake", "broken", False, Result.TLS),
)
