"""The environment that a script is started with.

It is built, never inherited. The rule that keeps a job's variables from becoming an attack on root stands
here; what a script hands back is in results.py.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perilogd.executor.wire import Spec

LANG = "C.UTF-8"

_STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def search_path() -> str:
    """Return PATH: the standard folders, then this installation's, so that scripts find `perilog`."""
    ours = os.path.dirname(sys.executable)  # noqa: PTH120 - kept as written, a virtual environment is a link
    return _STANDARD_PATH if ours in _STANDARD_PATH.split(":") else f"{_STANDARD_PATH}:{ours}"


def variables(spec: Spec, patterns: Iterable[str], *, personal: bool) -> Mapping[str, str]:
    """Return the job's variables under the names by which a script may have them.

    Names such as BASH_ENV or LD_PRELOAD let whoever sets them run code as the script's user. So only a script
    that runs as the job's own user gets variables as they are called, and only such a script gets the owner's
    own.

    Args:
        spec: the run.
        patterns: shell patterns of the names that are harmless (`[executor] environment`).
        personal: whether the script runs as the job's own user.
    """
    if personal:
        return {**spec.variables, **spec.user_variables}
    return {
        name if any(fnmatchcase(name, pattern) for pattern in patterns) else f"PERILOG_ENV_{name}": value
        for name, value in spec.variables.items()
    }


def build(
    spec: Spec,
    variables: Mapping[str, str],
    *,
    path: str,
    home: str,
    files: tuple[str, str, str],
    deadline: float | None,
) -> dict[str, str]:
    """Return a script's whole environment.

    Args:
        spec: the run.
        variables: of the job, as `variables` returned them. They replace nothing that is built here.
        path: see `search_path`.
        home: home folder of the user whom the script runs as.
        files: paths of PERILOG_JOB, PERILOG_MESSAGE and PERILOG_ENVIRONMENT.
        deadline: wall time in seconds, None for no limit.
    """
    built = {
        **variables,
        "PATH": path,
        "LANG": LANG,
        "HOME": home,
        "PERILOG_SOCKET": spec.socket,
        "PERILOG_JOB_ID": str(spec.job),
        "PERILOG_JOB_KEY": spec.key,
        "PERILOG_JOB_USERID": str(spec.userid),
        "PERILOG_JOB_NAME": spec.jobname,
        "PERILOG_JOB_NODES": spec.nodes,
        "PERILOG_PHASE": spec.phase,
        "PERILOG_ACTION": spec.action,
        "PERILOG_ATTEMPT": str(spec.attempt),
        "PERILOG_RUN_ID": spec.id,
        "PERILOG_JOB": files[0],
        "PERILOG_MESSAGE": files[1],
        "PERILOG_ENVIRONMENT": files[2],
    }
    # What is not there may not come from the job's variables either.
    for name, value in (
        ("PERILOG_JOB_STATUS", spec.status),
        ("PERILOG_REASON", spec.reason),
        ("PERILOG_PROLOG_STATUS", spec.prolog_status),
        ("PERILOG_DEADLINE", None if deadline is None else int(deadline)),
    ):
        if value is None:
            built.pop(name, None)
        else:
            built[name] = str(value)
    return built
