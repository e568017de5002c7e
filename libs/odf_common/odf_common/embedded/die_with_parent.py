"""Runs a command that dies with its parent: `die_with_parent.py PARENT_PID COMMAND …`.

A file of its own, run without site packages: a few milliseconds before the command takes its place. It is not
done by `preexec_fn`, because forking Python code is not safe beside the threads of gRPC and Kafka clients.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for SIGKILL when the parent ends, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It ended before the request.
        sys.exit(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
