"""P5, in the pure core: no job waits without somebody who can help it on, and without saying for what."""

from __future__ import annotations

import pytest

from lifecycle.explore import explore
from lifecycle.scenarios import SCENARIOS


@pytest.mark.parametrize("name", ["side by side", "dependency"])
def test_p05_nobody_waits_for_ever(name: str) -> None:
    """P5: from every state somebody can help, the job says who, and no way leads in circles."""
    seen = explore(SCENARIOS[name], {"P5"})
    assert seen.counts["P5"] > 0
    assert seen.visited["INACTIVE"] > 0
