"""Amounts of bytes as people write them: "64KiB", "1MiB".

Parsing lives here. Only powers of 1024 have names, so that nobody has to guess what
a "MB" is.
"""

from __future__ import annotations

import re

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB|TiB)", re.ASCII)

#: What to tell who wrote something else.
EXPECTED = 'a size such as "64KiB", "1MiB" or "1GiB"'


def parse(text: str) -> int:
    """Return the bytes of a size.

    Args:
        text: a whole number and one of the units B, KiB, MiB, GiB, TiB.

    Raises:
        ValueError: anything else; the text says what was found and what was expected.
    """
    parts = _SIZE.fullmatch(text)
    if parts is None:
        raise ValueError(f"found {text!r:.80}; expected {EXPECTED}")
    return int(parts[1]) * _UNITS[parts[2]]
