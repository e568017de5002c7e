"""Datasets of this node: `odf add`, `rename` and `delete`."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

import click

from odf_cli import clients
from odf_cli.name_lookup import complete_dataset
from odf_cli.output import confirm, output_option, print_object, print_rows, remark
from odf_cli.resource_requests import complete_resource, delete_resources, is_resource, rename_resource
from odf_cli.rows import summary_row
from odf_cli.user_input import STDIN, read_limited, require_short, shown_name
from odf_cli.visibility import say_if_private
from odf_common.chain.dependency_order import in_order
from odf_common.codec.manifests import snapshots_from_text
from odf_common.errors import DatasetInUse, InvalidInput, NotFound, Unavailable
from odf_common.identity.dataset_refs import is_pattern, matching_names, parse_ref
from odf_common.proto.odf.node.v1.coordinator_pb2 import (
    AddRequest,
    DatasetSummary,
    DeleteRequest,
    DescribeRequest,
    ListRequest,
    RenameRequest,
)
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub

ENDINGS = (".yaml", ".yml", ".json")
MAX_MANIFEST_BYTES = 16 * 1024 * 1024  # of one manifest
FETCH_TIMEOUT_SECONDS = 30  # to fetch a manifest


@click.command("add")
@click.argument("manifests", nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Search folders recursively.")
@click.option("--replace", is_flag=True, help="Update datasets that already exist.")
@output_option
def add_command(*, manifests: tuple[str, ...], recursive: bool, replace: bool, output: str) -> None:
    """Create datasets from manifests: files, folders, URLs, or - for standard input.

    Inputs are created before the datasets derived from them. Adding the same manifest again changes nothing.

    \b
    Example:
      odf add examples/nycflights
    """
    request = AddRequest(replace=replace)
    for where in manifests:
        for name, text in _read(where, recursive=recursive):
            request.manifests.add(name=name, text=text)
    if not request.manifests:
        raise NotFound(what=f"a manifest ({', '.join(ENDINGS)}) in {', '.join(manifests)}")
    clients.require_owners(_names(request))
    with clients.coordinator() as coordinator:
        reply = coordinator.Add(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    say_if_private(result.alias for result in reply.results if result.outcome != "unchanged")
    rows = [
        {"alias": result.alias, "outcome": result.outcome, "id": result.dataset_id, "head": result.head}
        for result in reply.results
    ]
    print_rows(rows, output, columns=("alias", "outcome", "id"))


def _names(request: AddRequest) -> Iterator[str]:
    """Yield the dataset names in manifests.

    Manifests without a valid name are left to the node, which reports the error.
    """
    for manifest in request.manifests:
        with suppress(InvalidInput):
            yield from (snapshot.name for snapshot in snapshots_from_text(manifest.text, manifest.name))


def _read(where: str, *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    if where == STDIN:
        yield shown_name(where), read_limited(where, MAX_MANIFEST_BYTES)
    elif urlparse(where).scheme in ("http", "https"):
        yield where, _fetch(where)
    elif Path(where).is_dir():
        paths = Path(where).rglob("*") if recursive else Path(where).iterdir()
        yield from (
            (str(file), read_limited(str(file), MAX_MANIFEST_BYTES))
            for file in sorted(paths)
            if file.suffix in ENDINGS and file.is_file()
        )
    else:
        yield where, read_limited(where, MAX_MANIFEST_BYTES)


def _fetch(url: str) -> bytes:
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=FETCH_TIMEOUT_SECONDS) as answer:  # noqa: S310 - http and https only, see the caller
            content: bytes = answer.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise Unavailable(what=url, why=str(error)) from error
    require_short(content, MAX_MANIFEST_BYTES, url)
    return content


def complete_dataset_or_resource(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the datasets, and the resources as TYPE:NAME, that begin with `incomplete`."""
    datasets = complete_dataset(context, parameter, incomplete)
    return datasets + complete_resource(context, parameter, incomplete)


@click.command("rename")
@click.argument("dataset", shell_complete=complete_dataset_or_resource)
@click.argument("name")
@output_option
def rename_command(*, dataset: str, name: str, output: str) -> None:
    """Rename a dataset. Its id, chain, push topics and derivatives stay the same.

    TYPE:NAME renames a resource of any type; the resource of a dataset is renamed with it, and it with its resource.

    On a multi-tenant node, the account in the new name owns it from then on, and must exist.

    \b
    Example:
      odf rename flights departures
      odf rename VariableSet:env settings
    """
    if is_resource(dataset):
        print_object(rename_resource(dataset, name), output)
        return
    clients.require_owners([name])
    with clients.coordinator() as coordinator:
        summary = coordinator.Rename(
            RenameRequest(ref=dataset, new_alias=name), timeout=clients.COMMAND_TIMEOUT_SECONDS
        )
    print_object(summary_row(summary), output)


@click.command("delete")
@click.argument("datasets", nargs=-1, required=True, shell_complete=complete_dataset_or_resource)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Also resources that others need.")
@click.option("--orphan", is_flag=True, help="Keep what resources own, such as finished tasks of a flow.")
@click.option("--wait", is_flag=False, flag_value="30s", help="Wait until resources are gone, up to 30s.")
def delete_command(
    *, datasets: tuple[str, ...], yes: bool, force: bool, orphan: bool, wait: str | None
) -> None:
    """Delete datasets with their chain, data and push topics; refused while another dataset is derived from them.

    DATASET is a name, an id, or a pattern of names in which % matches anything. Nothing is deleted unless all of
    them exist and can be deleted. TYPE:NAME is a resource of any type, with what it describes: a dataset goes with its
    resource, and its resource with it.

    \b
    Example:
      odf delete flights.late --yes
      odf delete 'flights.%'
      odf delete Dataset:flights VariableSet:env --yes
    """
    resources = [ref for ref in datasets if is_resource(ref)]
    if resources:
        if len(resources) < len(datasets):
            raise click.UsageError("give resources, as TYPE:NAME, or datasets, not both")
        if not yes:
            confirm(f"Delete {', '.join(resources)} permanently?")
        delete_resources(resources, is_forced=force, is_orphaning=orphan, wait=wait)
        return
    if force or orphan or wait is not None:
        raise click.UsageError("--force, --orphan and --wait are for resources, as TYPE:NAME")
    with clients.coordinator() as coordinator:
        summaries = coordinator.List(ListRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS).datasets
        chosen = deletable(_select_datasets(coordinator, datasets, summaries), summaries)
        if not yes:
            confirm(f"Delete {', '.join(dataset.alias for dataset in chosen)} permanently?")
        for dataset in chosen:
            coordinator.Delete(DeleteRequest(ref=dataset.dataset_id), timeout=clients.COMMAND_TIMEOUT_SECONDS)
            remark(f"deleted {dataset.alias}")


def _select_datasets(
    coordinator: CoordinatorStub, refs: Iterable[str], summaries: Iterable[DatasetSummary]
) -> Iterator[DatasetSummary]:
    summaries = tuple(summaries)
    by_name = {dataset.alias: dataset for dataset in summaries}
    by_ref = {
        str(parse_ref(text)).lower(): dataset
        for dataset in summaries
        for text in (dataset.alias, dataset.dataset_id)
    }
    for ref in refs:
        if is_pattern(ref):
            yield from (by_name[name] for name in matching_names([ref], by_name))
        elif (dataset := by_ref.get(str(parse_ref(ref)).lower())) is not None:
            yield dataset
        else:  # it raises the exact error
            yield coordinator.Describe(DescribeRequest(ref=ref), timeout=clients.COMMAND_TIMEOUT_SECONDS)


def deletable(
    chosen: Iterable[DatasetSummary], summaries: Iterable[DatasetSummary]
) -> tuple[DatasetSummary, ...]:
    """Return the chosen datasets, derivatives before their inputs; raises `DatasetInUse` if others read one."""
    by_id = {dataset.dataset_id: dataset for dataset in chosen}
    readers_left: dict[str, list[str]] = {}
    for other in summaries:
        if other.dataset_id not in by_id:
            for input_ in dict.fromkeys(input_ for input_ in other.inputs if input_ in by_id):
                readers_left.setdefault(by_id[input_].alias, []).append(other.alias)
    if readers_left:
        read = "; ".join(f"{name} is read by {', '.join(readers)}" for name, readers in readers_left.items())
        raise DatasetInUse(text=f"{read}: delete its readers too, or first")
    readers = {
        id_: [dataset.dataset_id for dataset in by_id.values() if id_ in dataset.inputs] for id_ in by_id
    }
    return tuple(by_id[dataset] for dataset in in_order(readers))
