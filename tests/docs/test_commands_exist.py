"""Every `odf` command that a document shows exists, with the options that it is shown with."""

import re
import shlex
from pathlib import Path

import click
import pytest

from odf_cli.main import odf

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SHOWN = re.compile(r"`(odf [a-z][^`\n]*)`|^\$ (?:.*\| ?)?(odf .*)$|^(odf .*)$", re.MULTILINE)


def problem(line: str) -> str | None:
    """Return the error of a command line, None if it is valid."""
    line = re.sub(r" +#.*| && .*| > .*", "", line)
    words = shlex.split(line.replace("…", "x"))[1:]
    command: click.Command = odf
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z-]+", words[0]):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"no command {words[0]}"
        command, words = found, words[1:]
    options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    unknown = (
        {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)} - options - {"--help", "-h"}
    )
    return f"no option {', '.join(sorted(unknown))}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_exists(page: Path) -> None:
    lines = ["".join(found).strip() for found in SHOWN.findall(page.read_text("utf-8"))]
    assert [(line, why) for line in lines if (why := problem(line)) is not None] == []
