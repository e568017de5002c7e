"""The entry point of the `odf` script; imports nothing slow itself."""

from odf_common.cli.exit_codes import importing


def main() -> int:
    """Run the command; returns the exit code."""
    with importing():
        from odf_common.cli import main as cli
    return cli.main()
