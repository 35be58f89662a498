"""Fixtures for trust: connections that processes of other users have made."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from raw import IS_ROOT, Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bed import Bed


class As(Protocol):
    """Connects to the bed's broker as a user."""

    def __call__(self, uid: int) -> Raw: ...  # noqa: D102 - see the class


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marker is for."""
    config.addinivalue_line(
        "markers", "other_users: needs processes of other users, which only root can start"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot be shown here: where we are not root, there are no other users."""
    if IS_ROOT:
        return
    left_out = [item for item in items if item.get_closest_marker("other_users")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def connect_as(bed: Bed, other_user_venv: Path) -> Iterator[As]:
    """Connect to the bed's broker as any user; the connections are closed when the test ends."""
    with ExitStack() as stack:
        python = other_user_venv / "python3"

        def connect(uid: int) -> Raw:
            return stack.enter_context(Raw.of(uid, bed.socket, python))

        yield connect
