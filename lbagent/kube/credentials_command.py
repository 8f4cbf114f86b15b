"""Runs the command of a kubeconfig for credentials (`exec`), and ends it with its child processes if it takes too long.

Source: client.authentication.k8s.io, "Input and output formats". The package `kubernetes` starts such a command and never ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.errors import LbError

MAX_QUOTED = 300  # characters of the command's error output


async def run(arguments: Sequence[str], environment: Mapping[str, str], api_version: str) -> dict[str, Any]:
    """Return the `status` of the ExecCredential that the command prints. Cancelled, it kills the command's process group.

    Raises OSError if the command cannot be started, LbError if it fails or prints something else.
    """
    info = {"apiVersion": api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    process = await asyncio.create_subprocess_exec(
        *arguments,
        env={**environment, "KUBERNETES_EXEC_INFO": json.dumps(info)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # a group of its own: its child processes end with it
    )
    try:
        output, errors = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if process.returncode:
        said = " ".join(errors.decode(errors="replace").split())[:MAX_QUOTED]
        raise LbError(f"{arguments[0]} ended with {process.returncode}" + (f": {said}" if said else ""))
    return _status(arguments[0], output, api_version)


def _status(command: str, output: bytes, api_version: str) -> dict[str, Any]:
    try:
        found = json.loads(output)
    except DECODING_ERRORS:
        raise LbError(f"{command} printed no JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("status"), dict):
        raise LbError(f"{command} printed no ExecCredential with a status")
    if found.get("apiVersion") != api_version:
        raise LbError(f"{command} printed an ExecCredential of {found.get('apiVersion')}, expected {api_version}")
    status: dict[str, Any] = found["status"]
    return status
