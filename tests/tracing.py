"""Scripts that leave a trace: when each began, was told to end, and ended, in the order in which it happened.

Here live the scripts that tests give to a test bed, and the reading of what they wrote. What a test proves
with them does not belong here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bed import until

if TYPE_CHECKING:
    from bed import Bed

_SCRIPT = """
mark() {{
    read -r clock _ < /proc/uptime
    echo "$1 $PERILOG_PHASE $PERILOG_ACTION $PERILOG_JOB_ID $clock" >> {file}
}}
trap 'mark end' EXIT
trap 'mark term; {on_term}' TERM
mark begin
{body}
"""


class Mark(NamedTuple):
    """One line of a trace.

    Args:
        word: "begin", "term" (the script was told to end) or "end".
        phase: of the script.
        action: of the script.
        job: the job's id.
        clock: seconds since boot.
    """

    word: str
    phase: str
    action: str
    job: int
    clock: float


class Trace:
    """What the scripts of a test bed have done.

    Args:
        bed: whose scripts.
    """

    def __init__(self, bed: Bed) -> None:
        self._file = bed.folder / "trace"
        self._file.touch()
        self._file.chmod(0o666)  # a job's own scripts run as the job's user
        self._gates = bed.folder / "gates"
        self._gates.mkdir()

    def script(self, body: str = "", *, on_term: str = "exit 1") -> str:
        """Return the text of a script.

        Args:
            body: what it does between its first mark and its last.
            on_term: what it does when it gets SIGTERM, after a mark.
        """
        return _SCRIPT.format(file=self._file, body=body, on_term=on_term)

    def gated(self, gate: str, after: str = "", *, on_term: str = "exit 1") -> str:
        """Return the text of a script that waits at a gate.

        Args:
            gate: its name; it may hold variables, as in "$PERILOG_JOB_ID".
            after: what the script does once the gate is open.
            on_term: see `script`.
        """
        wait = f'until [ -e "{self._gates}/{gate}" ]; do sleep 0.02; done'
        return self.script(f"{wait}\n{after}", on_term=on_term)

    def open(self, gate: object) -> None:
        """Open a gate, for all who wait at it and all who will."""
        (self._gates / str(gate)).touch()

    def marks(
        self,
        word: str | None = None,
        phase: str | None = None,
        action: str | None = None,
        job: int | None = None,
    ) -> list[Mark]:
        """Return the marks made so far, in order; those that fit what is given."""
        wanted = (word, phase, action, job)
        found = []
        for line in self._file.read_text().splitlines():
            made, where, whose, number, clock = line.split()
            mark = Mark(made, where, whose, int(number), float(clock))
            if all(given in (None, own) for given, own in zip(wanted, mark, strict=False)):
                found.append(mark)
        return found

    def wait(self, word: str, phase: str, action: str, job: int | None = None, times: int = 1) -> None:
        """Wait until such a mark has been made, or has been made so many times."""
        until(lambda: len(self.marks(word, phase, action, job)) >= times)

    def words(self, job: int | None = None) -> list[str]:
        """Return all marks so far, each as "word phase action"."""
        return [f"{mark.word} {mark.phase} {mark.action}" for mark in self.marks(job=job)]
