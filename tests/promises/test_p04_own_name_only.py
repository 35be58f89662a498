"""P4, in the pure core: a hold is ended by its own name only; starting or finishing it twice is harmless."""

from __future__ import annotations

import pytest

from lifecycle.explore import explore
from lifecycle.scenarios import SCENARIOS


@pytest.mark.parametrize("name", ["declared, forced", "never begun, lost"])
def test_p04_own_name_only(name: str) -> None:
    """P4: in every interleaving, nothing ends that was not named, and repeating changes nothing."""
    seen = explore(SCENARIOS[name], {"P4"})
    assert seen.counts["P4"] > 0
    assert seen.visited["INACTIVE"] > 0
