"""`perilog demo`: three short stories on a private broker, each checked against its log and the disk.

Here live the stories and their scripts. Starting and ending the broker is in `perilog.testing`. Needs no
root, uses a temporary folder, and leaves nothing behind.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import perilog
from perilog.testing import BrokerFailedError, PrivateBroker

Event = dict[str, Any]

#: Longest time that one step of a story may take; only a fault lasts that long.
PATIENCE = "60s"

CONFIG = """\
# Only jobs with the attribute `demo` are meant, each story by its own value of it.

[[action]]                                  # (a)
name = "scratch"
match = {{ demo = "scratch" }}
prolog = ["{scripts}/make-scratch"]
completion = ["{scripts}/drain-scratch"]
epilog = ["{scripts}/remove-scratch"]

[[provider]]                                # (b)
name = "dws"
users = ["{user}"]
match = {{ demo = "mounts" }}
holds = ["prolog:dws-setup", "epilog:dws-epilog"]

[[action]]
name = "mount-daemon"
match = {{ demo = "mounts" }}
prolog = ["{scripts}/stop-mount-daemon"]
epilog = ["{scripts}/start-mount-daemon"]

[[action]]                                  # (c)
name = "cleanup"
match = {{ demo = "restart" }}
prolog = ["/bin/true"]
epilog = ["{scripts}/slow-cleanup"]
"""

SCRIPTS = {
    "make-scratch": """
mkdir "$folder/scratch"
echo "DW_JOB_scratch=$folder/scratch" >> "$PERILOG_ENVIRONMENT"
""",
    "drain-scratch": """
done=0
for file in "$folder"/scratch/*; do
    cp "$file" "$folder/results/"
    done=$((done + 25))
    perilog progress "$PERILOG_JOB_ID" completion scratch "$done" "copied ${file##*/}"
    sleep 0.3
done
""",
    "remove-scratch": """
rm -r "$folder/scratch"
""",
    "stop-mount-daemon": """
rm "$folder/mount-daemon"
perilog memo "$PERILOG_JOB_ID" mount-daemon=stopped
exec sleep 600
""",
    "start-mount-daemon": """
touch "$folder/mount-daemon"
echo "undone: $PERILOG_REASON, prolog status $PERILOG_PROLOG_STATUS" > "$PERILOG_MESSAGE"
""",
    "slow-cleanup": """
echo begun >> "$folder/cleanup"
perilog memo "$PERILOG_JOB_ID" cleanup=begun
until [ -e "$folder/broker-is-dead" ]; do sleep 0.05; done
echo "finished while no broker was running" > "$PERILOG_MESSAGE"
echo ended >> "$folder/cleanup"
""",
}

#: The application of (a): four files of results.
APPLICATION = 'for part in 1 2 3 4; do echo "result $part" > "$DW_JOB_scratch/part-$part"; done'


class NotShownError(Exception):
    """Something that the demo is there to show did not hold."""


def require(holds: bool, what: str) -> None:
    """Fail unless something holds.

    Raises:
        NotShownError: with `what` as its text.
    """
    if not holds:
        raise NotShownError(what)


class Story:
    """What the three stories share: the broker, a connection to it, and the log of the job they tell of.

    Args:
        broker: the private broker, started.
    """

    def __init__(self, broker: PrivateBroker) -> None:
        self.broker = broker
        self.folder = broker.folder
        self.client = perilog.connect(str(broker.socket))
        self._perilog = [str(Path(sys.executable).with_name("perilog")), "-s", str(broker.socket)]

    def call(self, method: str, **arguments: object) -> Any:
        """Ask the broker."""
        return self.client.call(method, **arguments)

    def wait(self, job: int, event: str, **match: object) -> None:
        """Wait for an event of a job."""
        self.call("job.wait", id=job, event=event, match=match or None, timeout=PATIENCE)

    def command(self, *words: str) -> int:
        """Run the command `perilog` in this terminal and return its exit status."""
        sys.stdout.flush()
        return subprocess.run([*self._perilog, *words], check=False).returncode

    def log(self, job: int) -> list[str]:
        """Print a job's log as `perilog eventlog` shows it, and return its events.

        Returns:
            One text an event: its name, then the description, status and outcome that it has.
        """
        print()
        require(self.command("eventlog", str(job)) == 0, "perilog eventlog prints the log")
        events: list[Event] = self.call("job.events", id=job)
        return [_in_short(event) for event in events]

    def result(self, job: int) -> str:
        """Return the job's result."""
        return str(self.call("job.get", id=job)["result"])


def _in_short(event: Event) -> str:
    context = event["context"]
    keys = ("description", "status", "outcome", "type")
    return " ".join([event["name"], *(str(context[key]) for key in keys if key in context)])


def in_order(log: list[str], *wanted: str) -> None:
    """Fail unless the log holds these events, each exactly once, in this order."""
    for text in wanted:
        require(log.count(text) == 1, f"'{text}' is in the log exactly once")
    places = [log.index(text) for text in wanted]
    require(places == sorted(places), "in this order in the log: " + ", ".join(wanted))


def scratch(story: Story) -> str:
    """(a) A scratch folder is made, filled, drained and removed around an application."""
    results = story.folder / "results"
    results.mkdir()
    with perilog.connect(str(story.broker.socket)) as onlooker:
        watch = onlooker.watch(progress=True)
        onlooker.call("broker.ping")  # from here on nothing escapes the watch
        words = ["--key", "demo-scratch", "--attr", "demo=scratch", "--", "/bin/sh", "-c", APPLICATION]
        require(story.command("run", *words) == 0, "perilog run ends with the application's exit code, 0")
        onlooker.call("broker.ping")
        percents = [event.context["progress"] for event in watch.take() if event.name == "progress"]
    require(percents == [25, 50, 75, 100], f"the copy's progress is seen: 25, 50, 75, 100, not {percents}")
    parts = sorted(path.name for path in results.iterdir())
    require(parts == [f"part-{part}" for part in range(1, 5)], "the data is there when `perilog run` returns")
    job = story.client.find("demo-scratch")
    story.wait(job, "clean")
    in_order(
        story.log(job),
        "prolog-start scratch",
        "prolog-finish scratch 0 ok",
        "ready",
        "start",
        "exit 0",
        "completion-start scratch",
        "completion-finish scratch 0 ok",
        "finish 0",
        "epilog-start scratch",
        "epilog-finish scratch 0 ok",
        "clean",
    )
    require(not (story.folder / "scratch").exists(), "the scratch folder is gone")
    require(story.result(job) == "COMPLETED", "the result is COMPLETED")
    return "`finish` came only when the data was in place, and the scratch folder is gone again."


def mounts(story: Story) -> str:
    """(b) A job is canceled while its prolog runs; what the prolog did is undone, in time for others."""
    daemon = story.folder / "mount-daemon"
    daemon.touch()
    with perilog.connect(str(story.broker.socket), provider="dws") as service:
        job = int(story.call("job.submit", nodes="localhost", attributes={"demo": "mounts"})["id"])
        story.wait(job, "prolog-start", description="dws-setup")
        variables = {"DW_JOB_scratch": "/mnt/dws/1"}
        setup = {"id": job, "phase": "prolog", "name": "dws-setup"}
        service.call("hold.finish", **setup, status=0, environment=variables)

        story.wait(job, "memo")
        require(not daemon.exists(), "the prolog has stopped the mount daemon")
        print("The mount daemon is stopped, the prolog still runs; now the user loses patience, four times.")
        for _ in range(4):
            story.call("job.cancel", id=job, note="interrupted by ctrl-C")

        # The service cannot unmount before the daemon is back.
        story.wait(job, "epilog-start", description="dws-epilog")
        story.wait(job, "epilog-finish", description="mount-daemon")
        require(daemon.exists(), "the epilog has started the mount daemon again")
        service.call("hold.finish", id=job, phase="epilog", name="dws-epilog", status=0)
        story.wait(job, "clean")
    log = story.log(job)
    canceled = signal.SIGTERM.value
    in_order(
        log,
        "prolog-finish dws-setup 0 ok",
        "epilog-start mount-daemon",
        f"prolog-finish mount-daemon {canceled} canceled",
        "epilog-finish mount-daemon 0 ok",
        "epilog-finish dws-epilog 0 ok",
        "clean",
    )
    in_order(log, "epilog-start dws-epilog", "epilog-finish dws-epilog 0 ok")
    require(log.count("exception cancel") == 4, "all four cancels are recorded")
    require(
        log.index("exception cancel") < log.index("epilog-start mount-daemon"), "the cancel leads to the undo"
    )
    require("ready" not in log and "start" not in log, "the application never started")
    require(not any(node.get("reason") for node in story.call("node.list")), "no node is drained")
    require(story.result(job) == "CANCELED", "the result is CANCELED")
    return "The prolog was stopped half way, all that it had done was undone, once, and no node was drained."


def restart(story: Story) -> str:
    """(c) The broker is killed in the middle of an epilog, and the job goes on."""
    runs = story.folder / "cleanup"
    job = int(story.call("job.submit", nodes="localhost", attributes={"demo": "restart"})["id"])
    story.wait(job, "ready")
    story.call("job.start", id=job)
    story.call("job.exit", id=job, status=0)
    story.wait(job, "memo")
    require(runs.read_text() == "begun\n", "the epilog is running")

    print("The epilog runs; the broker dies by SIGKILL, and the script ends while there is no broker.")
    story.client.close()
    story.broker.kill()
    (story.folder / "broker-is-dead").touch()
    patience = time.monotonic() + 60
    while runs.read_text() != "begun\nended\n":
        require(time.monotonic() < patience, "the script goes on without a broker")
        time.sleep(0.02)
    story.broker.start()
    story.client = perilog.connect(str(story.broker.socket))
    story.wait(job, "clean")
    in_order(
        story.log(job), "exit 0", "finish 0", "epilog-start cleanup", "epilog-finish cleanup 0 ok", "clean"
    )
    require(runs.read_text() == "begun\nended\n", "the epilog script ran exactly once")
    require(story.result(job) == "COMPLETED", "the result is COMPLETED")
    return "The epilog outlived its broker, ran once, and the log has its true status."


STORIES = (scratch, mounts, restart)


def prepare(broker: PrivateBroker) -> None:
    """Write the configuration and the scripts."""
    scripts = broker.folder / "scripts"
    scripts.mkdir()
    for name, body in SCRIPTS.items():
        path = scripts / name
        path.write_text(f'#!/bin/sh\nset -e\nfolder="{broker.folder}"\n{body}')
        path.chmod(0o755)
    user = pwd.getpwuid(os.geteuid()).pw_name
    broker.config.write_text(CONFIG.format(user=user, scripts=scripts))


def main() -> int:
    """Tell the stories.

    Returns:
        The exit status: 0 if everything held.
    """
    with tempfile.TemporaryDirectory(prefix="perilog-demo-") as name:
        try:
            with PrivateBroker(Path(name)) as broker:
                prepare(broker)
                broker.start()
                story = Story(broker)
                for tell in STORIES:
                    print(f"\n=== {tell.__doc__}\n", flush=True)
                    try:
                        print(f"\n  -> {tell(story)}")
                    except (NotShownError, perilog.Error) as fault:
                        print(f"\n  DID NOT HOLD: {fault}\n{broker.log_tail()}", file=sys.stderr)
                        return 1
                story.client.close()
        except BrokerFailedError as fault:
            print(f"perilog demo: {fault}", file=sys.stderr)
            return 1
    print("\nThe private broker is stopped, its folder removed: nothing is left behind.")
    return 0
