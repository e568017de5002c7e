"""The entry point of the `odf` script; imports nothing slow itself."""

import os
from typing import NoReturn

from odf_cli.exit_codes import importing
from odf_common.service.lean_imports import lean_imports


def main() -> NoReturn:
    """Run the command, and exit with its code.

    The command has closed what it opened, and printed everything. Python would still take its modules apart one by one,
    which takes as long as a tenth of a short command.
    """
    with lean_imports("pandas"), importing():
        from odf_cli import main as cli
    os._exit(cli.main())
