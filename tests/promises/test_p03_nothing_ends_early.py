"""P3, in the pure core: neither `finish`, `clean` nor a release comes while something needs to end first."""

from __future__ import annotations

import pytest

from lifecycle.explore import explore
from lifecycle.scenarios import SCENARIOS


@pytest.mark.parametrize("name", ["declared, forced", "client in depend"])
def test_p03_nothing_ends_early(name: str) -> None:
    """P3: in every interleaving, `finish` waits for completion, `release` and `clean` for all."""
    seen = explore(SCENARIOS[name], {"P3"})
    assert seen.counts["P3"] > 0
    assert seen.visited["INACTIVE"] > 0
