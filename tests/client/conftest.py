"""Fixtures for the client's tests: an installed copy of the command, and stand-ins for the broker."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pytest

from client.command import Command
from client.fake_broker import FakeBroker, FakeLife

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS = Path(__file__).resolve().parents[2] / "clients"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in a folder laid out as pip does it, with this Python and this tree's package."""
    top = tmp_path_factory.mktemp("installed")
    packages = top / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "perilog").symlink_to(CLIENTS / "perilog")
    (packages / "msgpack").symlink_to(Path(msgpack.__file__).parent)
    (top / "bin").mkdir()
    (top / "bin" / "python3").symlink_to(sys.executable)
    shutil.copy(CLIENTS / "bin" / "perilog", top / "bin" / "perilog")
    return top / "bin" / "perilog"


@pytest.fixture
def socket_path(folder: Path) -> Path:
    """A path for a socket that nobody listens on yet."""
    return folder / "s"


@pytest.fixture
def perilog(installed: Path, socket_path: Path) -> Command:
    """The installed command, told of the socket of `fake` or `life`."""
    return Command(installed, socket_path)


@pytest.fixture
def fake(socket_path: Path) -> Iterator[FakeBroker]:
    """A broker that answers as it is told to."""
    with FakeBroker(socket_path) as broker:
        yield broker


@pytest.fixture
def life(socket_path: Path) -> Iterator[FakeLife]:
    """A broker with one job that goes from submit to clean."""
    with FakeLife(socket_path) as broker:
        yield broker
