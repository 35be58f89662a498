"""`perilog.testing.PrivateBroker`: it starts, dies and ends as it says, and leaves no process behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perilog.testing import BrokerFailedError, PrivateBroker

if TYPE_CHECKING:
    from pathlib import Path

    from bed import Bed


def test_close_ends_broker_executor_and_scripts(bed: Bed) -> None:
    """Closing ends all processes, also a script that ignores SIGTERM and a child that left its session."""
    stubborn = (
        "trap '' TERM; setsid sleep 600 & perilog memo $PERILOG_JOB_ID here=1; while :; do sleep 600; done"
    )
    bed.action("stubborn", prolog=stubborn)
    bed.start()
    bed.wait(bed.submit(), "memo")
    kinds = [process.daemon for process in bed.processes()]
    assert kinds.count(True) == 2
    assert kinds.count(False) >= 2
    bed.close()
    assert bed.processes() == []


def test_state_survives_a_kill(bed: Bed) -> None:
    """After SIGKILL and a new start the same job is there, and the executor is still the same process."""
    bed.action("wait", prolog="perilog memo $PERILOG_JOB_ID here=1; exec sleep 600")
    bed.start()
    job = bed.submit()
    bed.wait(job, "memo")
    executor = bed.executor()
    bed.kill9()
    bed.start()
    assert bed.call("job.get", id=job)["state"] == "PROLOG"
    assert bed.executor() == executor


def test_a_faulty_configuration_is_shown(folder: Path) -> None:
    """A broker that does not start raises an error that holds its own words."""
    with PrivateBroker(folder) as broker:
        broker.config.write_text("[broker]\ngusts = 1\n")
        with pytest.raises(BrokerFailedError, match="gusts"):
            broker.start()


def test_a_long_path_is_refused(tmp_path: Path) -> None:
    """A folder in which no Unix socket can lie is refused in words."""
    with pytest.raises(BrokerFailedError, match="shorter path"):
        PrivateBroker(tmp_path / ("x" * 100))
