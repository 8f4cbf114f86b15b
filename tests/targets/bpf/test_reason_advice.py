"""What `explain` recommends exists: options of the agent and commands; each refusal has a recommendation."""

from __future__ import annotations

import re

from lbagent.cli.main import VERBS, cli
from lbagent.cli.verbs.agent import agent
from lbagent.maps.reasons import Reason
from lbagent.targets.bpf import reason_advice

TEXTS = [*reason_advice.ADVICE.values(), reason_advice.NO_PROGRAM, reason_advice.NO_SERVICE, reason_advice.OTHER_MAC]
OF_EXPLAIN = {"--device", "--repair", "--service"}


def test_options_and_commands_that_are_named_exist() -> None:
    options = {name for param in agent.params for name in (*param.opts, *param.secondary_opts)} | OF_EXPLAIN
    named = {word for text in TEXTS for word in re.findall(r"--[a-z][a-z-]*[a-z]", text)}
    assert named
    assert named <= options, named - options
    commands = {word for text in TEXTS for word in re.findall(r"`lbagent (\w+)", text)}
    assert commands <= set(VERBS)
    assert cli.name


def test_each_refusal_has_advice() -> None:
    refusals = {reason for reason in Reason if reason.name.startswith(("DROP_", "REJECT_", "PASS_"))}
    assert refusals <= set(reason_advice.ADVICE)
