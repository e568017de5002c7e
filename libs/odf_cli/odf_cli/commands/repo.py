"""`odf repo`: named repositories, where datasets are shared."""

from urllib.parse import urlsplit

import click

from odf_cli.output import output_option, print_object, print_rows
from odf_cli.suggestions import CommandGroup
from odf_common.adapters.local.home_secrets import keep_private
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.repository_urls import BUCKETS
from odf_common.adapters.s3.location import S3Location
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import Name
from odf_common.service.settings import load


@click.group("repo", cls=CommandGroup)
def command() -> None:
    """Manage named repositories: other nodes, static servers, folders, buckets.

    NAME/DATASET, NAME/ACCOUNT/DATASET and NAME/ID refer to datasets of the repository NAME.

    \b
    Example:
      odf repo add shop odf+https://data.example.org/
      odf pull shop/orders
      odf push orders --to shop
    """


@command.command("add")
@click.argument("name")
@click.argument("url")
@output_option
def add(*, name: str, url: str, output: str) -> None:
    """Add the repository at URL under NAME: file://, http(s)://, odf+http(s):// or s3://. It is not contacted.

    A node that you push to needs a URL with odf+; http(s):// alone can only be pulled from.

    \b
    Example:
      odf repo add shop odf+https://data.example.org/
      odf repo add disk file:///srv/datasets
    """
    if urlsplit(url).scheme in BUCKETS:
        S3Location.parse(url)  # refused now, not by the first command that uses it
    added = _repositories().add(Name(name), url)
    print_object({"name": name, "url": added.url}, output)


@command.command("list")
@output_option
def list_all(*, output: str) -> None:
    """List the named repositories.

    \b
    Example:
      odf repo list
    """
    repositories = _repositories()
    rows = [_row(repositories, name) for name in repositories.names()]
    columns = ("name", "url", "problem") if any(row["problem"] for row in rows) else ("name", "url")
    print_rows(rows, output, columns=columns)


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@output_option
def delete(*, names: tuple[str, ...], output: str) -> None:
    """Remove named repositories. Datasets copied from them are kept.

    \b
    Example:
      odf repo delete shop
    """
    for name in names:
        _repositories().remove(Name(name))
    print_rows([{"name": name} for name in names], output, columns=("name",))


def _repositories() -> LocalRepositories:
    home = load().home
    keep_private(home)
    return LocalRepositories(home)


def _row(repositories: LocalRepositories, name: Name) -> dict[str, object]:
    try:
        return {"name": str(name), "url": repositories.find(name).url, "problem": None}
    except OdfError as error:
        return {"name": str(name), "url": None, "problem": str(error)}
