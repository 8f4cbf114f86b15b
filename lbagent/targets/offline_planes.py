"""What commands use of data planes without an agent: checks of `doctor`, what `cleanup` removes, what serves without an agent.

A module of `SHIPPED` may have these functions; one without them has nothing of that kind:

- `checks()`: its table of checks, and `offline_node(config)`: what they read before the start;
- `live_flows(config)`: what it has in the kernel, and its live flows by frontend and backend;
- `remove(config, before)`: removes what an agent left, and returns it, one line each. Where something is there it calls `before`
  first, when no agent can start any more. Raises Conflict while an agent runs;
- `text_of(config, settings, state, form)`: what it would put in force, in one of its TEXT_FORMS, and
  `not_served(config, settings, state)`: what of Services it cannot do, one sentence each;
- `compared(config, settings, state, repair=...)`: in what it differs from a State, and what is left of that after a repair;
- `is_there(config)`: whether `compared` has anything to compare; without it, `compared` raises NotFound where it has not;
- `recorded(config, name_of, others, redact=...)`: its packets and maps for `lbagent record dump`. Raises NotFound without any;
- `left_explainer(config, name_of)`: what explains packets without an agent, a context manager;
- `left_serving(config)`: what serves without an agent, pairs of a word and a text for `lbagent status`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from typing import Any, NamedTuple

from msgspec.structs import replace

from lbagent.config import Config
from lbagent.config.renderer_words import DEFAULT, RendererSettings
from lbagent.errors import AgentUnreachable, ConfigError, NotFound, Unsupported
from lbagent.model.check import Check, CheckGroup
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.render.renderer_names import NOT_BUILT, SHIPPED, Unavailable, reason_of_plug_in
from lbagent.render.renderer_types import Difference
from lbagent.targets.data_plane import LiveFlows, RecordedPackets
from lbagent.targets.explanation import ExplainRequest, Explanation
from lbagent.targets.renderers import chosen

Explain = Callable[[ExplainRequest], list[Explanation]]
Remover = Callable[[Config, Callable[[], None]], list[str]]
NameOf = Callable[[int, str], str | None]  # id of a frontend (0: unknown), its text -> NAMESPACE/NAME


class OfflineDataPlane(NamedTuple):
    """A data plane of --renderer before the start."""

    name: str
    checks: CheckGroup[Any] | None = None  # None: it has none of its own
    unavailable: str = ""  # the sentence, where it cannot be used here; only of one without checks
    balances: bool = False  # it balances packets


def offline_data_planes(config: Config) -> list[OfflineDataPlane]:
    """Return the data planes of --renderer, in its order. Raises ConfigError."""
    with suppress(Unsupported):
        chosen(config)
    return [_offline(replace(config, renderer=(word,))) for word in config.renderer or DEFAULT]


def _offline(config: Config) -> OfflineDataPlane:
    """Return the one data plane of --renderer."""
    try:
        (name,) = (each.name for each in chosen(config))
    except Unsupported as error:
        return OfflineDataPlane(config.renderer[0].partition("=")[0], unavailable=str(error))
    if name not in SHIPPED:
        reason = reason_of_plug_in(name)
        return OfflineDataPlane(name, None, str(Unavailable(name, reason)) if reason else "")
    module = import_module(SHIPPED[name])
    balances = bool(module.FEATURES)
    if hasattr(module, "checks"):
        return OfflineDataPlane(name, CheckGroup(module.checks(), module.offline_node(config)), balances=balances)
    reason = module.unavailable()
    return OfflineDataPlane(name, None, str(Unavailable(name, reason)) if reason else "", balances)


def checks_of_data_planes() -> list[Check[Any]]:
    """Return the tables of all data planes with checks of their own."""
    return [check for module in _modules_with("checks") for check in module.checks()]


def removers() -> list[Remover]:
    """Return the function of each data plane that removes what an agent left in the kernel."""
    return [module.remove for module in _modules_with("remove")]


def take_out(config: Config, but: str = "") -> list[str]:
    """Remove what the data planes of --renderer have in force, `but` this one; return it, one line each.

    Raises Conflict, KernelError.
    """
    gone: list[str] = []
    for each in chosen(config):
        if each.name == but:
            continue
        module = import_module(SHIPPED[each.name]) if each.is_shipped else None
        if hasattr(module, "remove"):
            gone += module.remove(config, lambda: None)  # type: ignore[union-attr]
    return gone


def unavailable_reason(name: str) -> str:
    """Return why this process cannot use a shipped data plane here; '' when it can."""
    return str(import_module(SHIPPED[name]).unavailable()) if SHIPPED[name] else NOT_BUILT


class RenderedText(NamedTuple):
    """What a data plane puts in force, and what of Services it cannot do, one sentence each."""

    text: str
    warnings: list[str]


def text_of(config: Config, state: State, form: str = "") -> RenderedText:
    """Return what the one data plane of --renderer puts in force for a State, `form` '' in its first form.

    Raises ConfigError, Unsupported.
    """
    module, settings = _only(config, "text_of", "name one of those that have a text")
    if form and form not in module.TEXT_FORMS:
        raise ConfigError(f"-o {form}: {module.NAME} has the forms {', '.join(module.TEXT_FORMS)}")
    text = module.text_of(config, settings, state, form or module.TEXT_FORMS[0])
    return RenderedText(text, module.not_served(config, settings, state))


class Compared(NamedTuple):
    """In what a data plane differs from a State, and what is left of that after a repair."""

    name: str
    found: Sequence[Difference]
    left: Sequence[Difference]


def compared(config: Config, state: State, *, repair: bool) -> Compared:
    """Compare the one data plane of --renderer with a State, without an agent.

    Raises ConfigError, NotFound where it has nothing in force, AgentUnreachable where only an agent repairs it.
    """
    module, settings = _only(config, "compared", "without an agent, name one of these")
    found, left = module.compared(config, settings, state, repair=repair)
    return Compared(module.NAME, found, left)


def compared_named(config: Config, state: State, *, repair: bool) -> list[Compared]:
    """Do `compared`, and return it as a list of one."""
    return [compared(config, state, repair=repair)]


def compared_all(config: Config, state: State, *, repair: bool) -> list[Compared]:
    """Compare each data plane that is there with a State, whatever --renderer names.

    Of two that are there each is compared with the family whose frontends it has. Where only an agent repairs one of them the
    other one is repaired before the error. Raises NotFound where none is there, and what `compared` raises.
    """
    there: dict[str, Compared] = {}
    absent = ""
    for module in _modules_with("compared"):
        try:
            if not hasattr(module, "is_there") or module.is_there(config):
                there[module.NAME] = compared(replace(config, renderer=(module.NAME,)), state, repair=False)
        except NotFound as error:
            absent = absent or str(error)
    if not there:
        raise NotFound(absent)
    if len(there) == 1 and not repair:
        return list(there.values())
    words = [f"{name}{_family_word(done.found, state) if len(there) > 1 else ''}" for name, done in there.items()]
    done: list[Compared] = []
    failures: list[AgentUnreachable] = []
    for word in words:
        try:
            done.append(compared(replace(config, renderer=(word,)), state, repair=repair))
        except AgentUnreachable as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return done


def _family_word(found: Sequence[Difference], state: State) -> str:
    """Return the setting of the one family of which not every frontend is missing; '' where both are served, or none."""
    missing = {each.frontend for each in found if each.kind == "missing"}
    frontends = [svc.frontend for svc in state.services if not svc.wildcard]
    served = {Family.of(each.address) for each in frontends if each.with_protocol() not in missing}
    return f"=family=ipv{served.pop().digit}" if len(served) == 1 else ""


def _only(config: Config, function: str, advice: str) -> tuple[Any, RendererSettings]:
    """Return the module of the one data plane of --renderer, which has this function, and its settings. Raises ConfigError."""
    each, *more = chosen(config)
    module = import_module(SHIPPED[each.name]) if each.is_shipped else None
    if more or not hasattr(module, function):
        able = ", ".join(known.NAME for known in _modules_with(function))
        raise ConfigError(f"--renderer {' '.join(config.renderer)}: {advice}: {able}")
    return module, RendererSettings(each.settings, each.family)


def left_serving(config: Config) -> list[tuple[str, str]]:
    """Return what data planes serve without an agent."""
    return [fact for module in _modules_with("left_serving") for fact in module.left_serving(config)]


def recorded(config: Config, name_of: NameOf, others: Collection[bytes], *, redact: bool) -> RecordedPackets:
    """Return packets and maps for a record. Raises NotFound where no data plane left any, KernelError.

    `name_of` returns the Service of an id and a frontend; `others`: addresses that are no client's, as far as they are known.
    """
    (module,) = _modules_with("recorded")
    found: RecordedPackets = module.recorded(config, name_of, others, redact=redact)
    return found


def left_explainer(config: Config, name_of: NameOf) -> AbstractContextManager[Explain]:
    """Return what explains packets over what an agent that is gone has left. Raises AgentUnreachable without any, LbError."""
    (module,) = _modules_with("left_explainer")
    found: AbstractContextManager[Explain] = module.left_explainer(config, name_of)
    return found


def live_flows(config: Config, names: Collection[str]) -> list[LiveFlows]:
    """Return what these data planes have in the kernel, and their live flows. Raises LbError."""
    return [module.live_flows(config) for module in _modules_with("live_flows") if module.NAME in names]


def _modules_with(function: str) -> Iterator[Any]:
    for path in SHIPPED.values():
        module = import_module(path) if path else None
        if hasattr(module, function):
            yield module
