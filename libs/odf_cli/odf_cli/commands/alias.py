"""`odf alias`: the URLs that datasets are pulled from and pushed to."""

import click

from odf_cli import clients
from odf_cli.name_lookup import complete_dataset, dataset_argument
from odf_cli.output import output_option, print_rows
from odf_cli.suggestions import CommandGroup
from odf_common.proto.odf.node.v1.sync_pb2 import ChangeAliasesRequest, DatasetAliases, ListAliasesRequest

URL_OPTIONS = (
    click.option("--pull", "pull", multiple=True, metavar="URL", help="A URL or REPO/DATASET to pull from."),
    click.option("--push", "push", multiple=True, metavar="URL", help="A URL or REPO/DATASET to push to."),
)


@click.group("alias", cls=CommandGroup)
def command() -> None:
    """Manage the URLs that a dataset is pulled from and pushed to.

    The first pull from a URL adds it. `odf pull DATASET` pulls from the first one.

    \b
    Example:
      odf alias list
      odf alias add orders --pull https://data.example.org/orders
    """


@command.command("list")
@click.argument("datasets", nargs=-1, metavar="[DATASET]...", shell_complete=complete_dataset)
@output_option
def list_all(*, datasets: tuple[str, ...], output: str) -> None:
    """List the aliases of the given datasets, or of all.

    \b
    Example:
      odf alias list
      odf alias list 'shop.%'
    """
    with clients.sync() as sync:
        request = ListAliasesRequest(refs=datasets, is_strict=True)
        reply = sync.ListAliases(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    _print(reply.datasets, output)


@command.command("add")
@dataset_argument
@URL_OPTIONS[0]
@URL_OPTIONS[1]
@output_option
def add(*, dataset: str, pull: tuple[str, ...], push: tuple[str, ...], output: str) -> None:
    """Add URLs, without contacting them.

    \b
    Example:
      odf alias add orders --pull https://data.example.org/orders --push disk/orders
    """
    _require_urls(pull, push)
    _change(ChangeAliasesRequest(ref=dataset, add_pull=pull, add_push=push), output)


@command.command("delete")
@dataset_argument
@URL_OPTIONS[0]
@URL_OPTIONS[1]
@output_option
def delete(*, dataset: str, pull: tuple[str, ...], push: tuple[str, ...], output: str) -> None:
    """Delete URLs. Data copied from them is kept.

    \b
    Example:
      odf alias delete orders --pull https://data.example.org/orders
    """
    _require_urls(pull, push)
    _change(ChangeAliasesRequest(ref=dataset, delete_pull=pull, delete_push=push), output)


def _require_urls(pull: tuple[str, ...], push: tuple[str, ...]) -> None:
    if not pull and not push:
        raise click.UsageError("give --pull or --push")


def _change(request: ChangeAliasesRequest, output: str) -> None:
    with clients.sync() as sync:
        reply = sync.ChangeAliases(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    _print([reply], output)


def _print(datasets: "list[DatasetAliases]", output: str) -> None:
    rows = [
        {"dataset": dataset.alias, "kind": kind, "location": location}
        for dataset in datasets
        for kind, locations in (("pull", dataset.pull), ("push", dataset.push))
        for location in locations
    ]
    print_rows(rows, output, columns=("dataset", "kind", "location"))
