"""Logging by structlog and the standard library to stderr: JSON lines, or coloured ones on a terminal."""

import io
import logging
import sys
from typing import Final, TextIO

import structlog

from odf_common.codec.visible_text import visible
from odf_common.service.repeated_logs import RepeatedLogs

_SHARED: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)
NOISY: Final = ("py4j", "asyncio", "aiokafka", "faust", "mode", "urllib3", "grpc._cython")


def configure(level: str, *, service: str) -> None:
    """Send all logs of at least `level` to stderr, with the service's name: JSON unless stderr is a terminal.

    The same warning is logged less and less often while it is repeated.
    """
    is_terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        _for_people() if is_terminal else structlog.processors.JSONRenderer(default=str)
    )
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
                *(() if is_terminal else (structlog.processors.format_exc_info,)),  # a terminal gets colours
                *((_visible,) if is_terminal else ()),
                renderer,
            ],
        )
    )
    handler.addFilter(RepeatedLogs())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _for_people() -> structlog.dev.ConsoleRenderer:
    """Return a renderer whose tracebacks, unlike its default ones, do not show local variables: they have secrets."""
    return structlog.dev.ConsoleRenderer(exception_formatter=_traceback)


def _traceback(sink: TextIO, failure: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, failure)
    sink.write(visible(text.getvalue()))


def _visible(_: object, __: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape what would act on the terminal, or not be seen on it (`codec.visible_text`)."""
    return {key: visible(value) if isinstance(value, str) else value for key, value in entry.items()}


def configure_command() -> None:
    """Send warnings and errors to stderr as plain lines, since stdout is for results; once per process."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            _visible,
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, pad_level=False),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),  # without handlers, which write warnings to stderr
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _with_service(service: str) -> structlog.typing.Processor:
    """Add the service's name: threads do not inherit context variables bound in the main thread."""

    def add(_: object, __: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
        entry["service"] = service
        return entry

    return add
