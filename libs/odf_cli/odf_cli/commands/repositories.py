"""Datasets of other nodes: `odf repo`, `search`, `alias` and `push`."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import click

from odf_cli import clients
from odf_cli.name_lookup import complete_dataset, dataset_argument
from odf_cli.output import is_wide, output_option, print_object, print_rows, progress, remark, shorten_rows
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import absolute_url
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.local.secrets import keep_private
from odf_common.adapters.repository_urls import BUCKETS
from odf_common.adapters.s3.location import S3Location
from odf_common.errors import OdfError, count_of
from odf_common.identity.dataset_refs import Name
from odf_common.proto.odf.node.v1.sync_pb2 import (
    ChangeAliasesRequest,
    DatasetAliases,
    FoundDataset,
    ListAliasesRequest,
    SearchedRepository,
    SearchRequest,
    SyncPullItem,
    SyncPushRequest,
)
from odf_common.service.settings import load


@click.group("repo", cls=CommandGroup)
def repo_command() -> None:
    """Manage named repositories: other nodes, static servers, folders, buckets.

    NAME/DATASET, NAME/ACCOUNT/DATASET and NAME/ID refer to datasets of the repository NAME.

    \b
    Example:
      odf repo add shop odf+https://data.example.org/
      odf pull shop/orders
      odf push orders --to shop
    """


@repo_command.command("add")
@click.argument("name")
@click.argument("url")
@output_option
def add_repository(*, name: str, url: str, output: str) -> None:
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


@repo_command.command("list")
@output_option
def list_repositories(*, output: str) -> None:
    """List the named repositories.

    \b
    Example:
      odf repo list
    """
    repositories = _repositories()
    rows = [_repository_row(repositories, name) for name in repositories.names()]
    columns = ("name", "url", "problem") if any(row["problem"] for row in rows) else ("name", "url")
    print_rows(rows, output, columns=columns)


@repo_command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@output_option
def delete_repository(*, names: tuple[str, ...], output: str) -> None:
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


def _repository_row(repositories: LocalRepositories, name: Name) -> dict[str, object]:
    try:
        return {"name": str(name), "url": repositories.find(name).url, "problem": None}
    except OdfError as error:
        return {"name": str(name), "url": None, "problem": str(error)}


FOUND_COLUMNS = ("dataset", "kind", "foundIn", "description")
SEARCH_TIMEOUT_SECONDS: Final = 60.0


@click.command("search")
@click.argument("words", nargs=-1, required=True, metavar="TEXT...")
@click.option("--repo", "repositories", multiple=True, metavar="NAME", help="Search only this repository.")
@output_option
def search_command(*, words: tuple[str, ...], repositories: tuple[str, ...], output: str) -> None:
    """Find datasets by their names, keywords, columns and descriptions, here and in the repositories of `odf repo`.

    Every word of TEXT must occur in one of these; case is ignored. A node lists the datasets that you may read; of
    folders and buckets only the names are searched. A repository that does not answer within 10 seconds is left out.

    \b
    Example:
      odf search flights
      odf search weather station --repo shop
      odf search orders --output json
    """
    request = SearchRequest(text=" ".join(words), repositories=repositories)
    with clients.sync() as sync:
        reply = sync.Search(request, timeout=SEARCH_TIMEOUT_SECONDS)
    rows = [_found_row(dataset) for dataset in reply.datasets]
    if output == "table":
        rows = [
            {**row, "foundIn": ", ".join(dataset.found_in)}
            for row, dataset in zip(rows, reply.datasets, strict=True)
        ]
    shown = shorten_rows(rows, "description") if output == "table" else rows
    print_rows(
        shown, output, columns=(*FOUND_COLUMNS, "keywords", "columns", "id") if is_wide() else FOUND_COLUMNS
    )
    if reply.left_out:
        remark(f"{reply.left_out} more were found; add words")
    for text in repository_lines(reply.repositories):
        remark(text)


def repository_lines(repositories: Iterable[SearchedRepository]) -> list[str]:
    """Return one line per repository: its number of datasets, or the reason why it could not be searched."""
    return [_repository_line(repository) for repository in repositories]


def _repository_line(repository: SearchedRepository) -> str:
    if repository.problem:
        return f"{repository.name}: not searched: {repository.problem}"
    return f"{repository.name}: {count_of(repository.datasets, 'dataset')}"


def _found_row(dataset: FoundDataset) -> dict[str, object]:
    return {
        "dataset": dataset.name,
        "repository": dataset.repository or None,
        "id": dataset.dataset_id or None,
        "kind": dataset.kind or None,
        "foundIn": list(dataset.found_in),
        "description": dataset.description or None,
        "keywords": list(dataset.keywords),
        "columns": list(dataset.columns),
    }


URL_OPTIONS = (
    click.option("--pull", "pull", multiple=True, metavar="URL", help="A URL or REPO/DATASET to pull from."),
    click.option("--push", "push", multiple=True, metavar="URL", help="A URL or REPO/DATASET to push to."),
)


@click.group("alias", cls=CommandGroup)
def alias_command() -> None:
    """Manage the URLs that a dataset is pulled from and pushed to.

    The first pull from a URL adds it. `odf pull DATASET` pulls from the first one.

    \b
    Example:
      odf alias list
      odf alias add orders --pull https://data.example.org/orders
    """


@alias_command.command("list")
@click.argument("datasets", nargs=-1, metavar="[DATASET]...", shell_complete=complete_dataset)
@output_option
def list_aliases(*, datasets: tuple[str, ...], output: str) -> None:
    """List the aliases of the given datasets, or of all.

    \b
    Example:
      odf alias list
      odf alias list 'shop.%'
    """
    with clients.sync() as sync:
        request = ListAliasesRequest(refs=datasets, is_strict=True)
        reply = sync.ListAliases(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    _print_aliases(reply.datasets, output)


@alias_command.command("add")
@dataset_argument
@URL_OPTIONS[0]
@URL_OPTIONS[1]
@output_option
def add_alias(*, dataset: str, pull: tuple[str, ...], push: tuple[str, ...], output: str) -> None:
    """Add URLs, without contacting them.

    \b
    Example:
      odf alias add orders --pull https://data.example.org/orders --push disk/orders
    """
    _require_urls(pull, push)
    _change(ChangeAliasesRequest(ref=dataset, add_pull=pull, add_push=push), output)


@alias_command.command("delete")
@dataset_argument
@URL_OPTIONS[0]
@URL_OPTIONS[1]
@output_option
def delete_alias(*, dataset: str, pull: tuple[str, ...], push: tuple[str, ...], output: str) -> None:
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
    _print_aliases([reply], output)


def _print_aliases(datasets: "list[DatasetAliases]", output: str) -> None:
    rows = [
        {"dataset": dataset.alias, "kind": kind, "location": location}
        for dataset in datasets
        for kind, locations in (("pull", dataset.pull), ("push", dataset.push))
        for location in locations
    ]
    print_rows(rows, output, columns=("dataset", "kind", "location"))


PUSH_COLUMNS = ("dataset", "state", "blocks", "records")
PUBLIC, PRIVATE = "public", "private"


@click.command("push")
@dataset_argument
@click.argument("rest", nargs=-1, metavar="")
@click.option(
    "--to",
    "target",
    metavar="URL",
    help="odf+https://HOST/[ACCOUNT/]DATASET, file:///FOLDER, s3://BUCKET/PREFIX, REPO/DATASET, or REPO for the "
    "dataset's own name there. Default: where it was pushed last.",
)
@click.option(
    "--force",
    "is_forced",
    is_flag=True,
    help="Replace the remote chain if it has diverged; its own blocks are lost.",
)
@click.option(
    "--visibility",
    type=click.Choice([PRIVATE, PUBLIC]),
    help="Who may read the dataset if this push creates it on another node. Default: private; on a single-tenant node "
    "public, unless it is private here. A dataset that exists there with another visibility is not pushed. Folders and "
    "buckets keep none.",
)
@output_option
def push_command(
    *,
    dataset: str,
    rest: tuple[str, ...],
    target: str | None,
    is_forced: bool,
    visibility: str | None,
    output: str,
) -> None:
    """Copy new blocks and data of DATASET to another node, a folder or a bucket.

    Readers see the new blocks at once: a node checks everything before its head moves, and in a folder or a bucket the
    head moves last. Only a node that is sent more than 16 MiB of new blocks gets them in parts, one after another, and
    readers may see a part of the push meanwhile, which is a valid chain. A diverged chain is replaced at once.
    An interrupted push continues where it stopped. It is refused if the chains have diverged.
    Data of a derivative that was dropped here is left out of a folder or a bucket; other nodes take complete datasets.

    The URL of a node, or of a repository that is one, begins with odf+; http(s):// alone can only be pulled from.

    \b
    Example:
      odf push flights --to odf+https://example.org/flights
      odf push flights --to shop/flights --visibility public
      odf push flights --to file:///srv/datasets/flights
      odf push flights --to s3://my-bucket/shared/flights
      odf push flights
    """
    if rest:
        raise click.UsageError(f"unexpected {rest[0]!r}; the destination is an option: --to {rest[0]}")
    target = absolute_url(target or "")
    request = SyncPushRequest(
        dataset=dataset,
        target=target,
        is_forced=is_forced,
        is_public=visibility == PUBLIC,
        is_private=visibility == PRIVATE,
    )
    last = SyncPullItem()
    with clients.sync() as sync, progress() as bars:
        task = bars.add_task(dataset, total=None)
        for last in sync.Push(request, timeout=clients.STREAM_TIMEOUT_SECONDS):
            if last.is_private:
                remark(
                    f"warning: {last.alias} is private here; whoever can read {last.target} can read it there"
                )
            if last.state == "replacing":
                remark(f"warning: replacing the chain there, whose head is {last.replaced}")
            bars.update(
                task, description=f"{last.alias}: {last.state}", completed=last.done, total=last.total or None
            )
    remark(f"copied to {last.target}" if last.state == "updated" else f"nothing new for {last.target}")
    if last.missing_objects:
        remark(
            f"files that were dropped here and not sent: {last.missing_objects}; who pulls {last.alias} from there can "
            "recompute them from its inputs"
        )
    row = {"dataset": last.alias, "state": last.state, "blocks": last.new_blocks, "records": last.new_records}
    print_rows(
        [{**row, "head": last.head, "missingFiles": last.missing_objects}], output, columns=PUSH_COLUMNS
    )
