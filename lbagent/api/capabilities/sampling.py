"""`monitor --all` and `capture`: every packet is recorded as long as a request is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import TEXT, Capability, Route

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lbagent.targets.data_plane import PacketStreams


def _sampling(streams: PacketStreams, every: str, frames_after: str) -> AsyncGenerator[bytes, None]:
    from lbagent.errors import ConfigError

    if not (every.isascii() and every.isdecimal() and len(every) < 9 and frames_after in ("0", "1")):
        raise ConfigError("every must be a whole number, frames_after 0 or 1")
    return streams.stream(int(every), frames_after=frames_after == "1")


CAPABILITY: Capability[PacketStreams] = Capability(
    routes=(
        Route(
            "sampling",
            "GET",
            "/v1/sampling",
            TEXT,
            "server-sent events: `sampling` once the programs record one in `every` packets of the quick path and all others, then "
            "a comment each second. It lasts as long as the request is open. `?every=N` (1), `?frames_after=1`: also the frames "
            "that leave. 404 where no data plane is `bpf`",
            _sampling,
            query=(("every", "1"), ("frames_after", "0")),
            no_store=True,
            is_stream=True,
        ),
    ),
    off="no data plane of this agent can record packets; `--renderer bpf` has one that can",
)
