"""Debian's Chromium without a window, driven by the DevTools protocol over two pipes. Source: chromedevtools.github.io/devtools-protocol."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab.debian_packages import CHROMIUM, Unpacked, unpacked
from tests.lab.netns import LabError

PROGRAM = "usr/lib/chromium/chromium-headless-shell"
PULSE = "usr/lib/x86_64-linux-gnu/pulseaudio", "usr/lib/aarch64-linux-gnu/pulseaudio"  # a library that libpulse0 needs
OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"),
    *("--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"),
)
ANSWER_S = 30.0
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>"""


class Chromium:
    """A browser, for the time of a with statement. Raises LabError where its packages are missing: no test is skipped."""

    def __init__(self) -> None:
        self._packages: Unpacked = unpacked("chromium", CHROMIUM)
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a process of it may still write
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        """Start it."""
        folder, root = Path(self._folder.name), self._packages.root
        (folder / "fonts.conf").write_text(FONTS.format(fonts=root / "usr/share/fonts", cache=folder / "fonts"))
        environment = self._packages.environment()
        environment["LD_LIBRARY_PATH"] += "".join(f":{root / each}" for each in PULSE)
        environment |= {"FONTCONFIG_FILE": str(folder / "fonts.conf"), "HOME": str(folder)}
        command_end, self._commands = os.pipe()
        self._replies, reply_end = os.pipe()
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{command_end} 4>&{reply_end}', "bash"),
                *(str(root / PROGRAM), *OPTIONS, f"--user-data-dir={folder / 'profile'}"),
            ],
            env=environment,
            pass_fds=(command_end, reply_end),
            stderr=(folder / "stderr").open("wb"),
        )
        os.close(command_end)
        os.close(reply_end)
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        with suppress(LabError):
            self.call("Browser.close")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        self._folder.cleanup()

    def _read(self) -> None:
        with open(self._replies, "rb") as replies:
            data = b""
            while piece := replies.read1(65536):
                *messages, data = (data + piece).split(b"\0")
                for message in map(json.loads, messages):
                    if "id" in message:
                        self._answers[message["id"]].put(message)
                    else:
                        self.events.append(message)

    def call(self, method: str, session: str = "", **values: Any) -> dict[str, Any]:
        """Send a command; return its result. Raises LabError."""
        self._number += 1
        number = self._number
        self._answers[number] = queue.Queue()
        request = {"id": number, "method": method, "params": values} | ({"sessionId": session} if session else {})
        try:
            os.write(self._commands, json.dumps(request).encode() + b"\0")
            answer = self._answers[number].get(timeout=ANSWER_S)
        except (OSError, queue.Empty):
            said = (Path(self._folder.name) / "stderr").read_text(errors="replace")[-2000:]
            raise LabError(f"Chromium does not answer to {method}: {said}") from None
        if "error" in answer:
            raise LabError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def page(self) -> Page:
        """Open a page without content."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            page.call(f"{domain}.enable")
        return page


class Page:
    """One page."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Send a command of this page; return its result. Raises LabError."""
        return self._browser.call(method, self._session, **values)

    def events(self, method: str) -> list[dict[str, Any]]:
        """Return what was reported by this name until now."""
        return [
            each["params"]
            for each in list(self._browser.events)
            if each["method"] == method and each.get("sessionId") == self._session
        ]

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited. Raises LabError."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise LabError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, script: str, timeout_s: float = 15.0) -> None:
        """Wait until a JavaScript expression is true. Raises LabError."""
        end = time.monotonic() + timeout_s
        while not self.evaluate(script):
            if time.monotonic() > end:
                raise LabError(f"not true in {timeout_s:g} s: {script}: {self.evaluate('document.body.innerText')}")
            time.sleep(0.05)

    def names(self, role: str) -> list[str]:
        """Return the accessible names of everything with this role."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            each.get("name", {}).get("value", "")
            for each in nodes
            if not each["ignored"] and each["role"]["value"] == role
        ]
