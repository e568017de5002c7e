"""Runs work in a thread of its own and yields its reports, so that a caller who leaves does not keep its locks."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final

KEEP_ALIVE_SECONDS: Final = 5.0  # after which the last report is repeated


def reports_of(work: Callable[[Callable[[str], None]], object], name: str) -> Iterator[str]:
    """Yield what the work reports, until it ends; raises what it raises."""
    reports: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    failed: list[Exception] = []

    def run() -> None:
        try:
            work(reports.put)
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)
        finally:
            reports.put(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    last: str = ""
    while True:
        try:
            report = reports.get(timeout=KEEP_ALIVE_SECONDS)
        except queue.Empty:
            yield last
            continue
        if report is None:
            break
        last = report
        yield report
    for error in failed:
        raise error
