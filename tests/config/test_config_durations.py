"""Durations and sizes: what is read, what is refused, what is printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perilogd.config import durations, sizes

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
CENTURY = 36525 * 86400.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30m", 1800.0),
        ("1.5h", 5400.0),
        ("7d", 604800.0),
        ("10", 10.0),
        ("10s", 10.0),
        (".5m", 30.0),
        ("1.m", 60.0),
        ("1e2s", 100.0),
        ("infinity", None),
        ("0", None),
        ("0.0h", None),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    """The forms of RFC 23 are read; "infinity" and zero mean no limit."""
    assert durations.parse(text) == seconds


def test_zero_can_mean_no_delay() -> None:
    """Where a delay is meant, "0" is a delay of nothing, and "infinity" still has no end."""
    assert durations.parse("0", zero=0.0) == 0.0
    assert durations.parse("infinity", zero=0.0) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "30x",
        "-1s",
        "+1s",
        "1 s",
        " 1s",
        "1S",
        "1M",
        "nan",
        "inf",
        "Infinity",
        "1h30m",
        "0x10",
        "\u0661s",
        "1s\n",
    ],
)
def test_no_duration(text: str) -> None:
    """Anything else is refused, with what was found and what was expected."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        durations.parse(text)
    assert str(caught.value) == (
        f'found {text!r}; expected a duration such as "250ms", "30m", "1.5h" or "infinity"'
    )


@pytest.mark.parametrize("text", ["36526d", "1e400s"])
def test_too_long(text: str) -> None:
    """More than a century is a slip of the hand, not a duration."""
    with pytest.raises(
        ValueError, match=f"^found '{text}', which is more than a century; expected a duration "
    ):
        durations.parse(text)


@given(st.decimals(min_value=0, max_value=400, places=3), st.sampled_from(list(UNITS)))
def test_number_times_unit(number: object, unit: str) -> None:
    """A duration is its number times its unit."""
    assert durations.parse(f"{number}{unit}", zero=0.0) == float(str(number)) * UNITS[unit]


@given(st.none() | st.floats(min_value=0, exclude_min=True, max_value=CENTURY, allow_subnormal=True))
def test_printed_duration_is_read_back(seconds: float | None) -> None:
    """What is printed means exactly the same."""
    assert durations.parse(durations.format(seconds)) == seconds


@given(st.text())
def test_any_text(text: str) -> None:
    """Whatever is written is a duration, or refused as none; nothing else happens."""
    try:
        seconds = durations.parse(text, zero=0.0)
    except ValueError:
        return
    assert seconds is None or 0 <= seconds <= CENTURY


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "infinity"),
        (0.0, "0"),
        (0.25, "250ms"),
        (90.0, "90s"),
        (1800.0, "30m"),
        (5400.0, "90m"),
        (86400.0, "1d"),
        (0.0001, "0.0001s"),
    ],
)
def test_format(seconds: float | None, text: str) -> None:
    """A duration is printed in the largest unit that gives a whole number."""
    assert durations.format(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"), [("0B", 0), ("7B", 7), ("64KiB", 65536), ("1MiB", 2**20), ("2TiB", 2**41)]
)
def test_size(text: str, size: int) -> None:
    """Sizes count in powers of 1024."""
    assert sizes.parse(text) == size


@pytest.mark.parametrize("text", ["", "1", "1MB", "1mib", "1.5MiB", "-1B", "1 MiB", "1" * 16 + "B"])
def test_no_size(text: str) -> None:
    """Anything else is refused, with what was found and what was expected."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        sizes.parse(text)
    assert str(caught.value) == f'found {text!r}; expected a size such as "64KiB", "1MiB" or "1GiB"'
