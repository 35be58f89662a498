"""From a request to a process: what is run, as whom, with which files and environment.

How a process comes to be is spawn's; what becomes of the run afterwards is the supervisor's.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from perilogd.executor import environment, spawn, wire
from perilogd.executor.processes import boottime
from perilogd.executor.run import State
from perilogd.executor.spawn import SpawnError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perilogd.config import Action
    from perilogd.executor.definitions import Definitions
    from perilogd.executor.records import Folder
    from perilogd.executor.run import Run
    from perilogd.executor.spawn import User
    from perilogd.executor.wire import Spec

logger = logging.getLogger(__name__)


class Launcher:
    """Starts runs.

    Args:
        folder: the executor's.
        definitions: what may be run.
        boot_id: the kernel's.
        me: whom the executor runs as.
        broker_uid: whom the broker runs as.
    """

    def __init__(
        self, folder: Folder, definitions: Definitions, boot_id: str, me: User, broker_uid: int
    ) -> None:
        self._folder = folder
        self._definitions = definitions
        self._boot_id = boot_id
        self._me = me
        self._broker_uid = broker_uid
        self._path = environment.search_path()

    def start(self, run: Run, spec: Spec) -> None:
        """Begin a run: it is RUNNING then, or STARTING if its script runs as another user.

        Args:
            run: to be begun.
            spec: its own.

        Raises:
            SpawnError: it was not begun.
        """
        action, command = self._find(spec)
        who = self._whose(action, spec)
        log = self._write_request(action, spec)
        try:
            self._start(run, spec, action, command, who)
            self._folder.note(log, "begun", self.begun(run, boottime()))
        except OSError as error:  # a successor will look for the run's id in environments
            logger.error("run %s: cannot write down its pid: %s", run.id, error)  # noqa: TRY400 - no traceback
        finally:
            os.close(log)

    def begun(self, run: Run, before: float) -> dict[str, Any]:
        """Return what a successor needs in order to find a run's process, and to go on with it.

        Args:
            run: which was begun.
            before: CLOCK_BOOTTIME at which its process was there.
        """
        return {
            "pid": run.pid,
            "boot": self._boot_id,
            "after": run.since,
            "before": before,
            "started": run.started,
            "deadline": run.deadline,
            "kill_timeout": run.kill_timeout,
            "on_stuck": run.on_stuck,
        }

    def apply(self, run: Run, spec: Spec) -> None:
        """Give a run that was found again, but was not written down as begun, what its definition says."""
        if (action := self._definitions.find(spec.definition)) is not None:
            self._apply(run, spec, action)

    @staticmethod
    def _apply(run: Run, spec: Spec, action: Action) -> None:
        timeout = action.timeout.get(spec.phase)
        run.deadline = None if timeout is None else run.since + timeout
        run.kill_timeout, run.on_stuck = action.kill_timeout, action.on_stuck

    def _find(self, spec: Spec) -> tuple[Action, tuple[str, ...]]:
        action = self._definitions.find(spec.definition)
        if action is None:
            raise SpawnError(
                f"action {spec.action}: perilog-exec does not know its definition {spec.definition[:12]}; "
                "check that perilogd and perilog-exec read the same configuration file, then reload",
                wire.NOT_FOUND,
            )
        command = action.commands.get(spec.phase)
        if command is None or action.name != spec.action:
            raise SpawnError(
                f"action {spec.action}: its definition {spec.definition[:12]} has no {spec.phase} of it",
                wire.NOT_FOUND,
            )
        return action, command

    def _whose(self, action: Action, spec: Spec) -> int | str | None:
        """Return whom a script must run as, None if that is the executor's own user."""
        who: int | str | None = action.user
        if who is None and spec.phase == "completion":
            who = spec.userid
        if who is None or who in {self._me.uid, self._me.name}:
            return None
        if self._me.uid != 0:
            raise SpawnError(
                f"action {spec.action}: its {spec.phase} is to run as {who}, which needs root; "
                f"this perilog-exec runs as {self._me.name}"
            )
        return who

    def _write_request(self, action: Action, spec: Spec) -> int:
        try:
            self._definitions.store(action)
            return self._folder.write_request(spec.id, spec.to_wire())
        except OSError as error:
            raise SpawnError(f"cannot write down the run before it is begun: {error}") from None

    def _start(
        self, run: Run, spec: Spec, action: Action, command: tuple[str, ...], who: int | str | None
    ) -> None:
        run.since, run.started = boottime(), time.time()
        self._apply(run, spec, action)
        deadline = None if run.deadline is None else run.started + (run.deadline - run.since)
        out = self._folder.script_path(run.id, ".out")
        if who is None:
            run.pid = spawn.spawn(command, self._prepare(spec, self._me, deadline), out)
            run.state = State.RUNNING
        else:
            run.pid, run.fd = spawn.fork(who, command, lambda user: self._prepare(spec, user, deadline), out)
            run.state = State.STARTING

    def _prepare(self, spec: Spec, user: User, deadline: float | None) -> Mapping[str, str]:
        """Make the files that a script is promised, and return its environment.

        Raises:
            SpawnError: they cannot be made.
        """
        owner = None if user is self._me else (user.uid, user.gid)
        try:
            self._folder.write(f"{spec.id}.job", spec.document, 0o600, owner)
            self._folder.make(f"{spec.id}.message", owner)
            self._folder.make(f"{spec.id}.environment", owner)
        except OSError as error:
            raise SpawnError(f"cannot write the files of the run: {error}") from None
        path = self._folder.script_path
        # Whose job it is says the broker. One that has fewer rights than we have must not get ours by saying
        # that it is our own user's, with a variable that makes the script run something else.
        personal = user.uid == spec.userid and (user.uid != self._me.uid or user.uid == self._broker_uid)
        return environment.build(
            spec,
            environment.variables(spec, self._definitions.harmless, personal=personal),
            path=self._path,
            home=user.home,
            files=(path(spec.id, ".job"), path(spec.id, ".message"), path(spec.id, ".environment")),
            deadline=deadline,
        )
