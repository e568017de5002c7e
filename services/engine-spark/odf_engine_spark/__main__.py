"""Runs the engine: `python -m odf_engine_spark`.

With `--worker`, it runs as one of two processes, see `server.standby`.
"""

import os
import signal
import sys
import threading

from odf_common.service.lean_imports import lean_imports

with lean_imports("rich"):
    from odf_common.errors import OdfError
    from odf_common.service import logging
    from odf_common.service.die_with_parent import with_parent_death_signal
    from odf_common.service.environments import engine_environment
    from odf_common.service.settings import child_environment, load

WORKER = "--worker"


def shed_environment() -> None:
    """Re-execute this program with only the engine's environment variables, if there are others.

    The kernel shows the environment that a process was started with, so removing variables later is not enough.
    """
    environment, own = child_environment(), engine_environment(child_environment())
    if len(own) < len(environment):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], dict(own))  # noqa: S606 - itself


def keeps_spare() -> bool:
    """Return whether this process is a keeper of two engines; invalid settings are left to the service to report."""
    try:
        return load().engine_spare and WORKER not in sys.argv
    except OdfError:
        return False


def keep() -> int:
    """Keep an engine and its standby running until SIGTERM or SIGINT, and return the exit status."""
    from odf_engine_spark.server.standby import Worker, keep  # noqa: PLC0415 - the keeper does not load Spark

    logging.configure(load().log_level, service="engine-spark")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    command = with_parent_death_signal((sys.executable, "-m", "odf_engine_spark", WORKER))
    return keep(lambda: Worker.start(command), stop, after=load().engine_spare_after_ms / 1000)


def serve() -> None:
    """Serve until stopped; a worker first waits until the keeper lets it serve."""
    with lean_imports():
        from odf_common.service.run import run_isolated  # noqa: PLC0415 - as above
        from odf_engine_spark.server.service import build, build_worker  # noqa: PLC0415 - as above
    run_isolated(build_worker if WORKER in sys.argv else build)


shed_environment()
if keeps_spare():
    os._exit(keep())
serve()
