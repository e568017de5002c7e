"""Logging by structlog and the standard library to stderr: JSON lines in services, colours in the CLI."""

import logging
import sys
from typing import Final

import structlog

_SHARED: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)
NOISY: Final = ("py4j", "asyncio", "aiokafka", "faust", "mode", "urllib3", "grpc._cython")


def configure(level: str, *, service: str | None = None) -> None:
    """Send all logs of at least `level` to stderr: JSON with the service's name, coloured lines without one."""
    renderer: structlog.typing.Processor
    if service is None:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    else:
        renderer = structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                _with_service(service),
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _with_service(service: str | None) -> structlog.typing.Processor:
    """Add the service's name: threads do not inherit context variables bound in the main thread."""

    def add(_: object, __: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if service is not None:
            entry["service"] = service
        return entry

    return add
