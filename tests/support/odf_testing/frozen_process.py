"""Stops a process without ending it, as a debugger or an overloaded machine does."""

import os
import signal
import subprocess


def freeze(process: "subprocess.Popen[bytes]") -> None:
    """Stop a child by SIGSTOP, and wait until it has stopped: until then, some of its threads still run."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
