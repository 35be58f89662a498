"""The one way in which a request is refused.

`Refusal` is raised wherever a request turns out to be wrong or badly timed, and becomes the error
pair of the reply. Faults of the broker itself are not refusals: they end it.
"""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "EPROTO", "EINVAL", "ENOENT", "EEXIST", "EPERM", "EAGAIN", "ESTATE", "ENOSPC", "ETIMEDOUT", "ESHUTDOWN"
]

#: Codes that say "the broker is at fault, or not able just now", error kind 0.
_BROKER_SIDE = frozenset({"ENOSPC", "ESHUTDOWN"})


class Refusal(Exception):  # noqa: N818 - it names an answer, not a malfunction
    """A request is refused, and nothing was changed.

    Args:
        code: one of the stable codes of the protocol.
        text: what was wrong, with the value found and what was expected instead.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text

    @property
    def pair(self) -> tuple[int, str]:
        """The reply's error: kind (1: the request is at fault, 0: the broker is) and text."""
        return (0 if self.code in _BROKER_SIDE else 1, f"{self.code}: {self.text}")
