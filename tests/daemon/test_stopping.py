"""Ending a broker: stop, shutdown, drain; what goes on without it; one broker for one state folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import perilog
from bed import Bed
from tracing import Trace


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "broker.shutdown", "perilog shutdown"])
def test_a_stop_leaves_scripts_running(bed: Bed, how: int | str) -> None:
    """A broker that is told to stop ends with 0, its scripts go on, and the next broker takes them up."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("gate"))
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    process = bed.process
    assert process is not None
    if how == "perilog shutdown":
        assert bed.command("shutdown").returncode == 0
    elif how == "broker.shutdown":
        assert bed.call("broker.shutdown") == {}
    else:
        os.kill(process.pid, int(how))
    assert process.wait(30) == 0
    assert bed.running_scripts()
    assert "stopping" in bed.log_tail() or isinstance(how, str)
    with pytest.raises(perilog.Unreachable):
        bed.connect()
    bed.stop()
    trace.open("gate")
    bed.start()
    bed.wait(job, "ready")
    assert trace.words(job) == ["begin prolog a", "end prolog a"]


def test_whoever_waits_is_told_that_the_broker_ends(bed: Bed) -> None:
    """A stop ends the connections of those who wait for an event; what was confirmed before is on disk."""
    bed.start()
    with bed.connect() as client:
        waiting = client.begin("job.wait", id=bed.submit(), event="exit")
        last = client.call("job.submit", key="last", nodes="n1")["id"]
        bed.stop()
        with pytest.raises(perilog.Error):
            waiting.result()
    bed.start()
    assert bed.call("job.get", key="last")["id"] == last


def test_a_draining_broker_takes_no_new_jobs(bed: Bed) -> None:
    """With drain on a submit is ESHUTDOWN; known keys and live jobs are served; off undoes it."""
    bed.start()
    job = bed.submit(key="k")
    assert bed.call("broker.drain", on=True) == {"jobs": 1}
    assert bed.refusal("job.submit", nodes="n1").startswith("ESHUTDOWN: ")
    assert bed.call("job.submit", key="k", nodes="n1") == {"id": job, "created": False}
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    assert bed.call("broker.stats")["draining"] is True
    bed.call("broker.drain", on=False)
    assert bed.submit() == job + 1


def test_shutdown_drain_lists_what_is_left_and_waits_for_it(bed: Bed) -> None:
    """`perilog shutdown --drain` refuses new jobs, names those left, and ends the broker after the last."""
    bed.start()
    job = bed.submit(name="the-last-one")
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    process = bed.process
    assert process is not None
    program = Path(sys.executable).with_name("perilog")
    command = [str(program), "-s", str(bed.socket), "shutdown", "--drain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as shutdown:
        assert shutdown.stdout is not None
        assert shutdown.stdout.readline() == "jobs that are left: 1\n"
        assert bed.refusal("job.submit", nodes="n1").startswith("ESHUTDOWN: ")
        bed.call("job.exit", id=job, status=0)
        output = shutdown.stdout.read()
    assert shutdown.returncode == 0, output
    assert "the-last-one" in output
    assert process.wait(30) == 0
    bed.stop()
    bed.start()
    assert bed.job(job)["result"] == "COMPLETED"


def test_a_second_broker_on_the_same_folder_is_refused(bed: Bed) -> None:
    """One broker for one state folder: the second says who is there and ends with 2; the first goes on."""
    bed.start()
    program = Path(sys.executable).with_name("perilogd")
    options = {"config": bed.config, "state-dir": bed.state_dir, "run-dir": bed.folder / "other"}
    words = [f"--{name}={path}" for name, path in options.items()]
    done = subprocess.run([program, *words], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert str(bed.state_dir) in done.stderr
    assert bed.call("broker.ping")["version"]


def test_a_bad_configuration_keeps_the_broker_from_starting(bed: Bed) -> None:
    """Perilogd ends with 2 and every fault on stderr; --check and `perilog check` say the same."""
    bed.table("[limit]", requests=1)
    bed.table("[[action]]", name="a", prolog=["/no/such/file"])
    bed.write_config()
    outputs = []
    for words in ([], ["--check"]):
        command = [str(Path(sys.executable).with_name("perilogd")), f"--config={bed.config}", *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        outputs.append(done.stdout + done.stderr)
    done = bed.command("check", str(bed.config))
    assert done.returncode != 0
    outputs.append(done.stdout + done.stderr)
    for output in outputs:
        assert "limit: unknown table" in output
        assert "/no/such/file" in output
