"""What the verifier walks: an older kernel walks more of the same program, and rejects it at a million instructions."""

from __future__ import annotations

import re

import pytest

from lbagent.bpf.compiler import artifact as artifacts
from lbagent.bpf.compiler.c_source import ARTIFACT_PATH
from lbagent.bpf.hooks import CONTEXTS
from lbagent.bpf.load.loader import generation_maps, with_old_maps
from lbagent.kernel import bpf_prog, features
from tests.bpf.support import config_record

pytestmark = [pytest.mark.root, pytest.mark.bpf]
# 138,000 on Linux 6.18, 310,000 on 6.1. While the sweepers were walked again for each half and count that the verifier tracked,
# they took 232,000 and 630,000; the replies took 444,000 while each way through a flow's states was followed to the end.
MOST = 160_000 if features.kernel_version() >= (6, 18) else 500_000


@pytest.mark.parametrize(
    "name",
    ["sweep4", "sweep6", "call_xdp_11_reply4", "call_xdp_12_reply6", "call_tc_11_reply4", "call_tc_12_reply6"],
)
def test_the_largest_programs_take_no_more_than_half_of_what_the_verifier_allows(fds, name):
    program = artifacts.load(ARTIFACT_PATH).programs[name]
    with generation_maps(config_record()) as own:
        loaded = bpf_prog.prog_load(
            CONTEXTS[program.context].prog_type,
            program.relocated(with_old_maps({**fds, **own})),
            program.name,
            log_level=bpf_prog.LOG_STATS,
            log_bytes=1 << 16,
        )
    assert loaded.fd >= 0
    found = re.search(r"processed (\d+) insns", loaded.log)
    assert found
    assert int(found[1]) < MOST
