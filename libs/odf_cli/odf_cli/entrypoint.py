"""The entry point of the `odf` script; imports nothing slow itself."""

from odf_cli.exit_codes import importing
from odf_common.service.lean_imports import lean_imports


def main() -> int:
    """Run the command; returns the exit code."""
    with lean_imports("pandas"), importing():
        from odf_cli import main as cli
    return cli.main()
