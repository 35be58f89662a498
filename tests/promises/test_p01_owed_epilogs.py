"""P1, in the pure core: an owed epilog is begun once, after every prolog script, before the release."""

from __future__ import annotations

import pytest

from lifecycle.explore import explore
from lifecycle.scenarios import SCENARIOS


@pytest.mark.parametrize("name", ["in order", "not to be cancelled", "never begun, lost"])
def test_p01_owed_epilogs(name: str) -> None:
    """P1: in every interleaving, what a prolog began is undone, once, and in reverse order."""
    seen = explore(SCENARIOS[name], {"P1"})
    assert seen.counts["P1"] > 0
    assert seen.visited["INACTIVE"] > 0
