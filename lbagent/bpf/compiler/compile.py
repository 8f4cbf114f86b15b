"""The compiler: the only module that imports bcc, and only inside a short-lived child process.

The import of BCC costs 74 MB, it changes the working directory, and LLVM ends the process on some bad programs. So the parent
runs `python -m lbagent.bpf.compiler.compile` and reads its JSON output. Nothing is created or loaded here: the text is compiled
and the instructions are read back (`dump_func`). PyPI's `bcc` is another project: `_import_bcc` rejects it.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from lbagent.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEBIAN_PACKAGES = Path(
    "/usr/lib/python3/dist-packages"
)  # python3-bpfcc is pure ctypes: any CPython 3 can use it from there
BCC_MISSING = "BCC is not installed; apt install python3-bpfcc, or use the built artifact that comes with the package"
COMPILE_TIMEOUT_S = 300  # emulated machines take half a minute

_CLANG_ERROR = re.compile(r"^(\S[^:\n]*:\d+:\d+): (?:fatal )?error: (.*)$", re.MULTILINE)
_LLVM_ERROR = re.compile(r"^error: (\S[^:\n]*:\d+:\d+): (.*)$", re.MULTILINE)  # code generation: stack, calls


class Compiled(Struct, frozen=True):
    """The result of one unit: instructions by function name, warnings of clang."""

    functions: dict[str, bytes]
    warnings: str


def compile_text(text: str, flags: Sequence[str], what: str) -> Compiled:
    """Compile one flattened text in a child and return its programs; `what` names the unit in errors.

    Raises CompileError: real file and line of the first error, and all of clang's output below it.
    """
    from lbagent.bpf.compiler.c_source import STUB_DIR

    request = json.dumps({"text": text, "flags": list(flags)})
    env = dict(os.environ, BCC_KERNEL_SOURCE=str(STUB_DIR), PYTHONPATH=str(Path(__file__).resolve().parents[3]))
    try:
        child = subprocess.run(
            [sys.executable, "-m", "lbagent.bpf.compiler.compile"],
            input=request.encode(), capture_output=True, env=env, timeout=COMPILE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{what}: BCC did not finish within {COMPILE_TIMEOUT_S} s") from error
    log = child.stderr.decode(errors="replace").strip()
    if child.returncode:
        raise CompileError(_failure(what, log, child.returncode))
    answer: dict[str, str] = json.loads(child.stdout)
    return Compiled({name: base64.b64decode(code) for name, code in answer.items()}, log)


def _failure(what: str, log: str, code: int) -> str:
    """Return the first error, then the rest of the log below it."""
    match = _CLANG_ERROR.search(log) or _LLVM_ERROR.search(log)
    if match:
        return f"{match.group(1)}: {match.group(2)} (unit {what})\n{log}"
    last = log.splitlines()[-1] if log else f"the compiler ended with status {code} without output"
    return f"{what}: {last}" + (f"\n{log}" if log.count("\n") else "")


@cache
def bcc_version() -> str:
    """Return the version of the BCC that `compile_text` would use, '' without one. Imports nothing."""
    for init in _bcc_candidates():
        version = init.parent / "version.py"
        match = os.access(version, os.R_OK) and re.search(
            r"__version__\s*=\s*['\"]([^'\"]+)", version.read_text(encoding="utf-8")
        )
        if match:
            return match.group(1)
    return ""


def _bcc_candidates() -> list[Path]:
    spec = importlib.util.find_spec("bcc")
    found = [Path(spec.origin)] if spec and spec.origin else []
    found.append(DEBIAN_PACKAGES / "bcc" / "__init__.py")
    return [path for path in found if os.access(path.parent / "libbcc.py", os.R_OK)]


def _import_bcc() -> Any:
    """Import the real BCC, from Debian's folder when this interpreter has none or the namesake from PyPI."""
    for init in _bcc_candidates():
        spec = importlib.util.spec_from_file_location("bcc", init, submodule_search_locations=[str(init.parent)])
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules["bcc"] = module
        spec.loader.exec_module(module)
        if hasattr(module, "BPF"):
            return module
    raise CompileError(BCC_MISSING)


def main() -> int:
    """Child: read {text, flags} from stdin, write {function: base64 of its instructions} to stdout."""
    request = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what BCC or LLVM print goes to the log, never into the output
    try:
        bcc = _import_bcc()
        module = bcc.BPF(text=request["text"], cflags=request["flags"])
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - BCC raises bare Exception; clang's errors are on stderr already
        print(f"BCC: {error}", file=sys.stderr)
        return 1
    lib = bcc.lib
    names = [lib.bpf_function_name(module.module, index) for index in range(lib.bpf_num_functions(module.module))]
    json.dump({name.decode(): base64.b64encode(module.dump_func(name)).decode() for name in names}, answer)
    answer.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # LLVM's global destructors are slow, and not needed here
