"""Every file of this folder is a behaviour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.story import Story, blocks

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_behaviour(path, tmp_path):
    story = Story(tmp_path)
    told = blocks(path.read_text())
    assert any(block.words[0] in ("plan", "agent") for block in told), "nothing is checked"
    for block in told:
        story.play(block)
