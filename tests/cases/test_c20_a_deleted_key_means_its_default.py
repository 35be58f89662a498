"""C20: a key was deleted from the configuration and the old value stayed in force (flux-core #6596)."""

from __future__ import annotations

from bed import Bed


def test_c20_a_reload_resets_what_is_no_longer_written(bed: Bed) -> None:
    """After a reload without them, a timeout, a table and an action's keys are back at their defaults."""
    bed.table("[limits]", requests=7, reruns=1)
    bed.table("[holds]", timeout={"prolog": "5m"}, abandon_grace="7s")
    bed.action("a", prolog="exit 0", timeout={"prolog": "9s"}, on_stuck="kill", kill_timeout="1s")
    bed.start()
    written = bed.call("broker.config")
    assert written["limits"]["requests"] == 7
    assert written["holds"]["timeout"]["prolog"] == "5m"
    bed.tables[:] = [("[[action]]", {"name": "a", "prolog": bed.tables[2][1]["prolog"]})]
    bed.executor_answers()
    bed.write_config()
    bed.call("broker.reload")
    reloaded = bed.call("broker.config")
    job = bed.submit(max_reruns=50)
    started = bed.wait(job, "prolog-start", description="a")
    assert started["context"]["timeout"] == 1800.0
    bed.stop()
    bed.start()
    assert bed.call("broker.config") == reloaded
    assert reloaded["limits"] == {**written["limits"], "requests": 1024, "reruns": 100}
    assert reloaded["holds"]["timeout"]["prolog"] == "30m"
    assert reloaded["holds"]["abandon-grace"] == "60s"
    (action,) = reloaded["action"]
    shown = action["timeout"]["prolog"], action["on-stuck"], action["kill-timeout"]
    assert shown == ("30m", "drain", "60s")
