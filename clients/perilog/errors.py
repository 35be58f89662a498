"""How a request can fail, and the status with which a command then ends.

One table for the fast front and the full command. Nothing may be imported here.
"""

from __future__ import annotations

#: Exit status by code. Every other code ends a command with 1.
EXIT = {"EINVAL": 2, "ENOTCONN": 3, "EPERM": 4, "ENOENT": 5, "ETIMEDOUT": 124}


class Error(Exception):
    """A request failed.

    Args:
        code: the broker's stable code (`ENOENT`, `ESTATE`, …), or the client's own `ENOTCONN`.
        text: what was wrong, for people.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text

    @property
    def status(self) -> int:
        """The exit status of a command that fails with this."""
        return EXIT.get(self.code, 1)


class Unreachable(Error):  # noqa: N818 - it names an answer, not a malfunction
    """The broker cannot be reached, or the connection broke before the reply: ask again later."""

    def __init__(self, text: str) -> None:
        super().__init__("ENOTCONN", text)


class TimedOut(Error):  # noqa: N818 - as above
    """The time that was given has passed; the broker may still do what it was asked."""

    def __init__(self, text: str) -> None:
        super().__init__("ETIMEDOUT", text)


def refusal(error: object) -> Error:
    """Make the exception for a reply's error.

    Args:
        error: the pair `[kind, "CODE: text"]`; anything else is shown as it came.
    """
    text = error[1] if isinstance(error, list) and len(error) == 2 else error
    code, colon, rest = str(text).partition(": ")
    if not colon:
        return Error("EPROTO", f"the broker answered with an error of unknown form: {text!r}")
    return TimedOut(rest) if code == "ETIMEDOUT" else Error(code, rest)


def unreachable(socket: str, reason: str) -> Unreachable:
    """Make the exception for a broker that does not answer on `socket`."""
    return Unreachable(
        f"cannot reach the broker at {socket}: {reason}. Is perilogd running? "
        "Another socket is named by -s or $PERILOG_SOCKET"
    )


def lost(socket: str) -> Unreachable:
    """Make the exception for a connection that ended before the reply came."""
    return Unreachable(
        f"the broker at {socket} went away before it replied; the request may or may not have been "
        "carried out, and it is safe to ask again"
    )
