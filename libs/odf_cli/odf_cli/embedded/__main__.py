"""The supervisor as a process of its own, which `odf up --detach` starts with the arguments of a `Start`."""

import sys

from odf_common.service.lean_imports import lean_imports

with lean_imports("pandas", "rich"):
    from odf_cli.embedded.supervisor import Start, supervise
    from odf_common.codec.visible_text import visible
    from odf_common.errors import OdfError, explain
    from odf_common.service.logging import configure_command
    from odf_common.service.settings import load


def main() -> int:
    """Run the node until SIGTERM, and return the exit code."""
    configure_command()
    try:
        supervise(load(), Start.parse(sys.argv[1:]), lambda _: None)
    except OdfError as error:
        sys.stderr.write(f"{visible(explain(error))}\n")
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"{visible(f'error: {where}{error.strerror or error}')}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
