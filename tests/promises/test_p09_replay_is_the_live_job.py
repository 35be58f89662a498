"""P9, in the pure core: replaying the log gives exactly the live job, which goes on by itself to INACTIVE."""

from __future__ import annotations

import pytest

from lifecycle.explore import explore
from lifecycle.scenarios import SCENARIOS


@pytest.mark.parametrize("name", ["client in depend", "not to be cancelled"])
def test_p09_replay_is_the_live_job(name: str) -> None:
    """P9: in every state, the log makes the same job, which has nothing left to do by itself."""
    seen = explore(SCENARIOS[name], {"P9"})
    assert seen.counts["P9"] > 0
    assert seen.visited["INACTIVE"] > 0
