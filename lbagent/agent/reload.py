"""SIGHUP: read the configuration again and take over what can change while packets flow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from msgspec.structs import asdict

from lbagent.agent import layer_settings
from lbagent.agent.components import AgentComponents
from lbagent.agent.notify import notify
from lbagent.agent.sources import reconfigure_sources
from lbagent.config import RELOADABLE, Config, options
from lbagent.errors import LbError
from lbagent.observe import log as logs
from lbagent.resolve import Resolver

log = logging.getLogger(__name__)
RESIZE_RETRY_DELAY_S = 5.0  # after a change of map sizes that stopped half-way


class Reloader:
    """Waits for SIGHUP for ever. A configuration that cannot be used changes nothing."""

    def __init__(self, components: AgentComponents, load: Callable[[], Config], asked: asyncio.Event) -> None:
        """`load` reads the configuration anew; SIGHUP sets `asked`, from the first moment on."""
        self._components = components
        self._load = load
        self._asked = asked

    async def run(self) -> None:
        """Reload at each SIGHUP."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                self._components.problems = await self.reload(self._load())
            except LbError as error:
                text, again = f"the new configuration was not applied: {error}", self._components.plane.is_unfinished
                if again:
                    text += "; a change of map sizes is half done and nothing is lost;"
                    text += f" it is tried again in {RESIZE_RETRY_DELAY_S:g} s"
                    asyncio.get_running_loop().call_later(RESIZE_RETRY_DELAY_S, self._asked.set)
                self._components.problems = {"configuration": text}
                log.error("the new configuration was not applied", extra={"error": str(error), "will_retry": again})
            notify("READY=1")

    async def reload(self, new: Config) -> dict[str, str]:
        """Take over a configuration; return what of it is not in force, and why.

        Raises what makes it unusable, before anything is changed where that can be seen.
        """
        components, old = self._components, self._components.config
        changed = changed_keys(old, new)
        later = keys(changed - RELOADABLE)
        if later:
            log.warning("some settings take effect only at the next start", extra={"keys": later})
        plane = components.plane
        plane.check(new)
        merged = merge(old, new)
        problems = await plane.reconfigure(merged)
        logs.setup(merged.log_format, merged.log_level)
        network = plane.network
        if layer_settings.resolve_options(merged, network) != layer_settings.resolve_options(old, network):
            components.loop.replace_resolver(Resolver(layer_settings.resolve_options(merged, network)))
        if components.announcer is not None and changed & {"external_ips", "external_ip_cidr"}:
            components.announcer.use_external_ips(
                external_ips=merged.external_ips, external_ip_ranges=layer_settings.external_ip_ranges(merged)
            )
        reconfigure_sources(components.sources, merged)
        components.config = merged
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
