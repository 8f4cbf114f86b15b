"""Ends the BIRD of an earlier agent, where this one announces nothing. Every such agent looks for one at its start."""

from __future__ import annotations

import os

from lbagent.announce.bgp.bird_process import FOLDER, BirdProcess


async def end_left_bird(state_dir: str) -> bool:
    """End the BIRD that an agent with this state directory left, if there is one; return whether there was one."""
    bird = BirdProcess(os.path.join(state_dir, FOLDER))
    ended = await bird.end()
    bird.forget()
    return ended
