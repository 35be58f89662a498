"""C16: the prolog's background child kept stdout open and the prolog "ran" for hours (flux-core #6321)."""

from __future__ import annotations

import pytest

from bed import Bed

CHILDREN = {
    "background": "sleep 600 &",
    "daemon": "setsid sh -c 'exec sleep 600' &",
    "double fork": "(setsid sleep 600 &) &",
}


@pytest.mark.parametrize("child", CHILDREN)
def test_c16_the_scripts_own_exit_ends_it(bed: Bed, child: str) -> None:
    """A child that keeps stdout open, daemonized or not, keeps nothing alive; that it stayed is reported."""
    bed.action("a", prolog=f'{CHILDREN[child]}\necho "prolog says bye"')
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    finish = bed.event(job, "prolog-finish")["context"]
    assert (finish["outcome"], finish["status"]) == ("ok", 0)
    assert finish["note"] == "it left 1 process running"
    assert bed.call("script.list") == []
    assert len(bed.running_scripts()) == 1
    output = bed.call("script.output", id=job, phase="prolog", action="a")
    assert output["head"] == b"prolog says bye\n"
