"""The supervisor as a separate process, started by `odf up --detach` with the arguments of a `Start`."""

import sys

from odf_common.service.lean_imports import lean_imports

with lean_imports("pandas", "rich"):
    import click

    from odf_common.embedded.supervisor import Start, supervise
    from odf_common.errors import OdfError, explained
    from odf_common.service.logging import configure_command
    from odf_common.service.settings import load


def main() -> int:
    """Run the node until SIGTERM; returns the exit code."""
    configure_command()
    try:
        supervise(load(), Start.parse(sys.argv[1:]), lambda _: None)
    except OdfError as error:
        click.echo(explained(error), err=True)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {where}{error.strerror or error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
