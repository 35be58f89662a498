"""The log on stderr: how lines look. What is logged is said where it happens."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


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
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks if form == "json" else structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
