"""The answers of capabilities/explain.py: packets, and the manifests under which they are explained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lbagent.errors import ConfigError
from lbagent.sources.folder.resolve_path import resolve_texts
from lbagent.targets.explanation import ExplainingPlane, ExplainRequest, Explanation, ManifestText

if TYPE_CHECKING:
    from lbagent.model.state import State
    from lbagent.resolve import Options


class ExplainRequests:
    """A data plane that can explain, and what manifests mean on this node."""

    def __init__(self, plane: ExplainingPlane, options: Callable[[], Options]) -> None:
        self._plane, self._options = plane, options

    async def explain(self, request: ExplainRequest) -> Sequence[Explanation]:
        """Return what would happen to each packet. Raises LbError; ConfigError for manifests that are refused."""
        state = None
        if request.manifests is not None:
            state = await asyncio.to_thread(_state, request.manifests, self._options())
        return await self._plane.explain(request, state)


def _state(manifests: Sequence[ManifestText], options: Options) -> State:
    found = resolve_texts({each.name: each.text for each in manifests}, options)
    refused = [message for message in found.messages if not message.warning]
    if refused:
        more = f" ({len(refused) - 1} more)" if len(refused) > 1 else ""
        raise ConfigError(f"-f: {refused[0]}{more}; `lbagent plan -f` shows all")
    return found.state
