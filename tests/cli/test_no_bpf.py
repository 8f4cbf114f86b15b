"""Without bpf(2), as in a container whose seccomp profile forbids it or on a kernel built without it: one sentence, the code."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_kernel import bpffs  # noqa: F401 - a fixture

pytestmark = [pytest.mark.root, pytest.mark.bpf]

# a filter that allows every system call except bpf: ld nr; jeq nr_bpf; ret errno; ret allow (seccomp(2))
FORBID = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | int(sys.argv[1])), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program))) == 0
os.execv(sys.executable, [sys.executable, "-m", "lbagent", *sys.argv[2:]])
"""


def lbagent(number: int, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", FORBID, str(number), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSYS, 77), (errno.EPERM, 1)])
@pytest.mark.parametrize(
    "words", ["agent --manifests /tmp", "map dump", "verify", "cleanup", "bpf build --check", "doctor"]
)
def test_one_sentence(bpffs: Path, tmp_path: Path, number: int, code: int, words: str) -> None:  # noqa: F811
    link = bpffs / "v1" / "link"
    link.mkdir()
    (bpffs / "v1" / "lb4_flow").rename(link / "eth0-xdp")  # something for cleanup to open
    places = [] if words.startswith("bpf") else ["--bpffs", str(bpffs)]
    places += ["--socket", str(tmp_path / "a.sock"), "--state-dir", str(tmp_path)] if words.startswith("agent") else []
    done = lbagent(number, *words.split(), *places)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    text = done.stdout if words == "doctor" else done.stderr
    lines = [line for line in text.splitlines() if " INFO " not in line]
    assert words == "doctor" or len(lines) == 1
    wanted = ("bpf(2)", "Function not implemented") if number == errno.ENOSYS else ("CAP_BPF",)
    assert any(word in lines[0] + lines[-1] + text for word in wanted)
