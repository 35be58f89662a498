"""Fixtures for bad input: a broker that the tests of a file throw things at, and clients of it."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bed import Bed
from protocol.target import Target
from raw import Raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A running broker that survives whatever the tests of a file do to it."""
    with tempfile.TemporaryDirectory(prefix="pl-", dir="/tmp") as name, Bed(Path(name)) as bed:
        bed.action("undo", epilog="true")
        bed.start()
        yield Target(bed)
        process = bed.process
        assert process is not None
        assert process.poll() is None, bed.log_tail()


@pytest.fixture
def connect(target: Target) -> Iterator[Callable[[], Raw]]:
    """Connect clients to the target; they are closed when the test ends."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Raw.at(target.bed.socket))


@pytest.fixture
def client(connect: Callable[[], Raw]) -> Raw:
    """A client of the target."""
    return connect()
