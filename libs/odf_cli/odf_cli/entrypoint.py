"""The entry point of the `odf` script; imports nothing slow itself."""

import os
from typing import NoReturn

from odf_cli.exit_codes import importing
from odf_common.service.lean_imports import lean_imports


def main() -> NoReturn:
    """Run the command, and exit with its exit code.

    All output is flushed by then. `os._exit` skips the interpreter's cleanup of modules, which would take a tenth of
    the time of a short command.
    """
    with lean_imports("pandas"), importing():
        from odf_cli import main as cli
    os._exit(cli.main())
