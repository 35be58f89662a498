"""Fixtures: a server on a real socket, and clients of it that are closed in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from perilogd.rpc.method import Method
from rpc.helpers import Client, Connect, Serve, Served


@pytest.fixture
async def serve(folder: Path, nursery: trio.Nursery) -> AsyncIterator[Serve]:
    """Start servers that run until the test ends."""

    async def start(*methods: Method, **limits: int) -> Served:
        served = Served(folder / "sock", *methods, **limits)
        await nursery.start(served.run)
        return served

    yield start
    nursery.cancel_scope.cancel()


@pytest.fixture
async def served(serve: Serve) -> Served:
    """A server with the default limits."""
    return await serve()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connect clients to a server; they are closed when the test ends."""
    with ExitStack() as stack:

        def make(served: Served) -> Client:
            client = served.client()
            stack.callback(client.close)
            return client

        yield make
