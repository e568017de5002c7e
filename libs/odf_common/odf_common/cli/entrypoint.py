"""The entry point of the `odf` script; imports nothing slow itself."""

from odf_common.cli.exit_codes import importing
from odf_common.service.without_pandas import forbid_pandas


def main() -> int:
    """Run the command; returns the exit code."""
    forbid_pandas()
    with importing():
        from odf_common.cli import main as cli
    return cli.main()
