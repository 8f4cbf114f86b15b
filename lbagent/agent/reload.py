"""SIGHUP: read the configuration again and take over what can change while packets flow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import asdict

from lbagent.agent import layer_settings
from lbagent.agent.config_in_force import ConfigInForce
from lbagent.agent.notify import notify
from lbagent.config import RELOADABLE, Config, options
from lbagent.errors import LbError
from lbagent.observe import log as logs
from lbagent.resolve import Resolver
from lbagent.sync.loop import SyncLoop
from lbagent.targets.data_plane import DataPlane

log = logging.getLogger(__name__)
Follower = Callable[[Config, Collection[str]], None]
RESIZE_RETRY_DELAY_S = 5.0  # after a change of map sizes that stopped half-way


class Reloader:
    """Handles each SIGHUP. A configuration that cannot be used changes nothing."""

    def __init__(
        self,
        in_force: ConfigInForce,
        loop: SyncLoop,
        planes: Sequence[DataPlane],
        followers: Sequence[Follower],
        load: Callable[[], Config],
        asked: asyncio.Event,
    ) -> None:
        """`planes`: the serving one first; `load` reads the configuration.

        `followers` are called with the new configuration and the fields that changed. SIGHUP sets `asked`, from the first
        moment on.
        """
        self._in_force, self._loop, self._planes, self._followers = in_force, loop, planes, followers
        self._load = load
        self._asked = asked

    async def run(self) -> None:
        """Reload at each SIGHUP."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                self._in_force.problems = await self.reload(self._load())
            except LbError as error:
                text = f"the new configuration was not applied: {error}"
                again = any(plane.is_unfinished for plane in self._planes)
                if again:
                    text += "; a change of map sizes is half done and nothing is lost;"
                    text += f" it is tried again in {RESIZE_RETRY_DELAY_S:g} s"
                    asyncio.get_running_loop().call_later(RESIZE_RETRY_DELAY_S, self._asked.set)
                self._in_force.problems = {"configuration": text}
                log.error("the new configuration was not applied", extra={"error": str(error), "will_retry": again})
            notify("READY=1")

    async def reload(self, new: Config) -> dict[str, str]:
        """Take over a configuration; return what of it is not in force, and why.

        Raises what makes it unusable, before anything is changed where that can be seen.
        """
        old = self._in_force.config
        changed = changed_keys(old, new)
        later = keys(changed - RELOADABLE)
        if later:
            log.warning("some settings take effect only at the next start", extra={"keys": later})
        for plane in self._planes:
            plane.check(new)
        merged, problems = merge(old, new), dict[str, str]()
        for plane in self._planes:
            problems |= await plane.reconfigure(merged)
        logs.setup(merged.log_format, merged.log_level)
        network = self._planes[0].network
        if layer_settings.resolve_options(merged, network) != layer_settings.resolve_options(old, network):
            resolver = Resolver(layer_settings.resolve_options(merged, network))
            self._loop.replace_resolver(resolver, f"settings {' '.join(keys(changed & RELOADABLE))}")
        for follow in self._followers:
            follow(merged, changed)
        self._in_force.config = merged
        log.info("configuration applied", extra={"keys": keys(changed & RELOADABLE)})
        return problems


def changed_keys(old: Config, new: Config) -> set[str]:
    """Return the fields that differ."""
    before, after = asdict(old), asdict(new)
    return {name for name in before if before[name] != after[name]}


def keys(fields: Iterable[str]) -> list[str]:
    """Return the fields as an operator writes them: `node-ip`, sorted."""
    return sorted(option.key for option in options() if option.field in set(fields))


def merge(old: Config, new: Config) -> Config:
    """Return the new configuration with the old values of what needs a restart."""
    values = asdict(old) | {name: value for name, value in asdict(new).items() if name in RELOADABLE}
    return Config(**values)
