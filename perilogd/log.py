"""The log on stderr: how lines look. What is logged is said where it happens."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def _printable(logger: object, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape what is not printable: users write notes and reasons that administrators read on terminals."""
    del logger, method
    return {
        key: value.encode("unicode_escape").decode()
        if isinstance(value, str) and not value.isprintable()
        else value
        for key, value in line.items()
    }


def configure(form: Literal["text", "json"]) -> None:
    """Set up structlog for this process.

    Args:
        form: "text" for people (colours only on a terminal), "json" for collectors: one object a line.
    """
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            _printable,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks if form == "json" else structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
