"""P2, in the pure core: a job never starts while a prolog hold exists, nor after a fatal exception."""

from __future__ import annotations

import pytest

from lifecycle.explore import explore
from lifecycle.scenarios import SCENARIOS


@pytest.mark.parametrize("name", ["standing in between", "dependency"])
def test_p02_no_start_while_held(name: str) -> None:
    """P2: in every interleaving, `start` comes after all prolog holds and never after a fatal exception."""
    seen = explore(SCENARIOS[name], {"P2"})
    assert seen.counts["P2"] > 0
    assert seen.visited["INACTIVE"] > 0
