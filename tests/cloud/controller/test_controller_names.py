"""--controllers, as in Kubernetes' controller managers."""

from __future__ import annotations

import pytest

from lbagent.cloud.controller.controller_names import ALIASES, NAMES, check_switches, is_switched_on
from lbagent.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "running"),
    [
        ("*", set(NAMES)),
        ("", set()),
        ("*,-node-route-controller", set(NAMES) - {"node-route-controller"}),
        ("-route, *", set(NAMES) - {"node-route-controller"}),
        ("service,cloud-node", {"service-lb-controller", "cloud-node-controller"}),
        ("-service,service,*", set(NAMES) - {"service-lb-controller"}),
    ],
)
def test_which_run(text: str, running: set[str]) -> None:
    check_switches(text)
    assert {name for name in NAMES if is_switched_on(text, name)} == running


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="unknown controller 'nodeipam'; there are: service-lb-controller, .*"):
        check_switches("*,nodeipam")
    assert len(ALIASES) == len(NAMES)
