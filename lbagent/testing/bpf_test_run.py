"""BPF_PROG_TEST_RUN for tests and benchmarks: what `bpf/run/packet_run.py` has."""

from __future__ import annotations

from lbagent.bpf.run.packet_run import LOOPBACK, SKB_CTX_BYTES, Result, Tc, Xdp, run_tc, run_xdp

__all__ = ["LOOPBACK", "SKB_CTX_BYTES", "Result", "Tc", "Xdp", "run_tc", "run_xdp"]
