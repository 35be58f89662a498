"""P8, in the pure core: what ended badly is never reported as good, and all reports say the same."""

from __future__ import annotations

import pytest

from lifecycle.explore import explore
from lifecycle.scenarios import SCENARIOS


@pytest.mark.parametrize("name", ["never begun, lost", "not to be cancelled"])
def test_p08_outcomes_are_true(name: str) -> None:
    """P8: in every interleaving, outcomes are those of the world, and the result is the log's."""
    seen = explore(SCENARIOS[name], {"P8"})
    assert seen.counts["P8"] > 0
    assert seen.visited["INACTIVE"] > 0
