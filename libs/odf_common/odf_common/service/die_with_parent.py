"""Runs a command that is killed when its parent exits: `die_with_parent.py PARENT_PID COMMAND …`.

It runs without site packages, so it adds only a few milliseconds before the command replaces it. `preexec_fn` would not
do: running Python after a fork is not safe with the threads of gRPC and Kafka clients.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def with_parent_death_signal(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command wrapped so that it is killed when this process exits."""
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *command)


def main() -> None:
    """Ask the kernel to send SIGKILL when the parent exits, then replace this process by the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The parent exited before the request.
        sys.exit(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - programs are found on the path


if __name__ == "__main__":
    main()
