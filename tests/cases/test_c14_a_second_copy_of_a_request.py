"""C14: a second copy of a request raised a fatal exception and killed jobs (flux-coral2 #301)."""

from __future__ import annotations

import os
from typing import Any

from bed import Bed

ME = os.geteuid()


def test_c14_every_request_may_come_twice(bed: Bed) -> None:
    """Each request of a job's life, sent twice over two connections, has the same effect as once."""
    bed.table("[[provider]]", name="dws", users=[ME], holds=["prolog", "epilog"])
    bed.start()
    requests: list[tuple[str, dict[str, Any]]] = [
        ("job.submit", {"key": "k1", "holds": [{"phase": "completion", "name": "stage-out"}]}),
        ("job.alloc", {"id": 1, "nodes": "n[1-2]"}),
        ("hold.start", {"id": 1, "phase": "prolog", "name": "dws"}),
        ("hold.update", {"id": 1, "phase": "prolog", "name": "dws", "progress": 50}),
        ("hold.finish", {"id": 1, "phase": "prolog", "name": "dws"}),
        ("job.start", {"id": 1, "attempt": 1}),
        ("job.exit", {"id": 1, "attempt": 1, "status": 0}),
        ("hold.finish", {"id": 1, "phase": "completion", "name": "stage-out"}),
        ("hold.finish", {"id": 1, "phase": "epilog", "name": "dws"}),
    ]
    for method, arguments in requests:
        with bed.connect() as one, bed.connect() as other:
            copies = [one.begin(method, **arguments), other.begin(method, **arguments)]
            assert [copy.result().get("id", 1) for copy in copies] == [1, 1]
    bed.wait(1, "clean")
    names = bed.names(1)
    assert sorted(set(names)) == sorted(names)
    assert "exception" not in names
    assert bed.job(1)["result"] == "COMPLETED"
