"""perilog: talk to perilogd, the broker for the edges of a batch job.

    import perilog

    with perilog.connect() as broker:
        job = broker.submit(nodes="n1")
        print(broker.call("job.get", id=job)["state"])

Only names live here. Nothing may be imported at this level but what costs nothing: the command
starts through this package several times a job. What the names stand for is loaded when first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs a third of the whole start
if TYPE_CHECKING:
    from perilog.client import Client, Event, Reply, Watch, connect
    from perilog.errors import Error, TimedOut, Unreachable

__all__ = ["Client", "Error", "Event", "Reply", "TimedOut", "Unreachable", "Watch", "connect"]


def __getattr__(name: str) -> object:
    """Load a public name's module when the name is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "errors" if name in ("Error", "TimedOut", "Unreachable") else "client"
    value: object = getattr(__import__(f"perilog.{module}", fromlist=[name]), name)
    globals()[name] = value
    return value
