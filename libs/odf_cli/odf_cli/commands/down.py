"""`odf down`: stop the embedded node."""

import os
import signal
import time
from typing import Final

import click

from odf_cli.embedded.node_file import NoNode, forget_node, is_running, read_node
from odf_cli.embedded.orphans import end_leftovers
from odf_cli.output import remark
from odf_common.errors import Unavailable
from odf_common.service.settings import load

STOP_TIMEOUT_SECONDS: Final = 40.0  # longer than the supervisor's own limits


@click.command("down", short_help="Stop the node.")
def command() -> None:
    """Stop the node gracefully; no process of it is left when this returns.

    \b
    Example:
      odf down
    """
    home = load().home
    try:
        node = read_node(home)
    except NoNode as error:
        end_leftovers(home)
        forget_node(home)
        remark(str(error))
        return
    _end(node.pid)
    end_leftovers(home)
    forget_node(home)
    remark("the node is down")


def _end(pid: int) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    os.kill(pid, signal.SIGTERM)
    while is_running(pid):
        if time.monotonic() > deadline:
            # Its children are killed with it.
            os.kill(pid, signal.SIGKILL)
            raise Unavailable(
                what="the supervisor", why=f"it did not stop within {STOP_TIMEOUT_SECONDS:g} s and was killed"
            )
        time.sleep(0.05)
