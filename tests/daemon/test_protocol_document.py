"""docs/protocol.md against the daemon itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bed import ROOT

if TYPE_CHECKING:
    from bed import Bed


def test_every_method_and_argument_is_documented(bed: Bed) -> None:
    """Each method that `broker.methods` lists has a row in docs/protocol.md with all of its arguments."""
    rows = {}
    for line in (ROOT / "docs/protocol.md").read_text().splitlines():
        if line.startswith("| `"):
            names, arguments = line.split(" | ", 1)
            group = ""
            for name in re.findall(r"`([a-z.]+)`", names):
                group = group if name.startswith(".") else name.split(".")[0]
                rows[group + name if name.startswith(".") else name] = arguments
    bed.start()
    for method in bed.call("broker.methods"):
        name, arguments = method["name"], method["arguments"]
        assert name in rows
        missing = [word["name"] for word in arguments if not re.search(rf"\b{word['name']}\b", rows[name])]
        assert missing == [], name
