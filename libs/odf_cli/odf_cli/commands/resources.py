"""`odf apply`, `get`, `diff`, `history`, `reconcile`, `types`: the node's desired state in files (RFC-018)."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from odf_cli import clients
from odf_cli.exit_codes import ExitCode
from odf_cli.output import echo, output_option, print_object, print_rows, print_text, remark
from odf_cli.resource_requests import (
    POLL_SECONDS,
    complete_name,
    complete_resource,
    complete_type,
    is_resource,
    reason,
    resource_request,
    resource_row,
    seconds_of,
)
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import fetch
from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.resources.resource_manifests import MAX_BATCH_BYTES

SUFFIXES: Final = (".yaml", ".yml", ".json")
SETTLED: Final = ("Ready", "Failed")
WAIT_SECONDS: Final = 30.0
PAGE: Final = 1000
WATCH_WIDTHS: Final = (18, 16, 24, 12, 11, 10, 0)  # of the kind of an event, and of COLUMNS
COLUMNS: Final = ("type", "name", "account", "phase", "generation", "age")


@click.command("apply")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(allow_dash=True),
    help="File, folder, or - for standard input. May be repeated.",
)
@click.option("-R", "--recursive", is_flag=True, help="Also the folders in folders.")
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@click.option("--offline", is_flag=True, help="With --dry-run: only check the manifests, without a node.")
@click.option("--prune", is_flag=True, help="Delete what --selector matches and the files do not have.")
@click.option("--selector", default="", help="What --prune may delete, such as 'Flow:nightly.%'.")
@click.option("--rebind", is_flag=True, help="Let names mean other resources than before.")
@click.option(
    "--wait", is_flag=False, flag_value="30s", help="Wait until all are Ready or Failed, up to 30s."
)
@click.option("--account", default="", help="Account of manifests that name none.")
@output_option
def apply_command(
    *,
    files: tuple[str, ...],
    recursive: bool,
    dry_run: bool,
    offline: bool,
    prune: bool,
    selector: str,
    rebind: bool,
    wait: str | None,
    account: str,
    output: str,
) -> None:
    """Make resources as manifests describe them. All manifests are applied together, or none.

    \b
    Example:
      odf apply -f vars.yaml
      odf apply -f pipeline/ --dry-run
      odf apply -f pipeline/ --wait 60s
    """
    read = [*_manifest_files(files, is_recursive=recursive)]
    if offline:
        if not dry_run:
            raise click.UsageError("--offline needs --dry-run")
        print_rows(_check_offline(read), output)
        return
    if prune and not selector:
        raise click.UsageError("--prune needs --selector")
    request = pb.ApplyResourcesRequest(
        files=read, account=account, dry_run=dry_run, rebind=rebind, prune=selector if prune else ""
    )
    results = _apply(request)
    _print_results(results, output)
    if wait is not None and not dry_run:
        _await_settled(results, seconds_of(wait))


@click.command("diff")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(allow_dash=True),
    help="File, folder, or - for standard input.",
)
@click.option("-R", "--recursive", is_flag=True, help="Also the folders in folders.")
@click.option("--account", default="", help="Account of manifests that name none.")
@output_option
def diff_command(*, files: tuple[str, ...], recursive: bool, account: str, output: str) -> None:
    """Print what applying manifests would change; the exit code is 1 if anything would.

    \b
    Example:
      odf diff -f pipeline/
    """
    read = [*_manifest_files(files, is_recursive=recursive)]
    results = _apply(pb.ApplyResourcesRequest(files=read, account=account, dry_run=True))
    changed = [result for result in results if result["outcome"] != "unchanged"]
    if output == "table":
        for result in changed:
            print_text("\n".join(_diff_lines(result)))
    else:
        print_rows(changed, output)
    if changed:
        raise click.exceptions.Exit(ExitCode.FAILED)


@click.command("convert")
@click.option(
    "-f", "--file", "files", multiple=True, required=True, help="File, folder, or - for standard input."
)
@click.option("-R", "--recursive", is_flag=True, help="Also the folders in folders.")
def convert_command(*, files: tuple[str, ...], recursive: bool) -> None:
    """Print manifests of datasets as resources, or resources as manifests of datasets. It needs no node.

    What you have to do besides, and what is left out, is on standard error.

    \b
    Example:
      odf convert -f rates.yaml > node/rates.yaml
      odf apply -f node/rates.yaml
    """
    from odf_common.codec.manifests import snapshots_from_text
    from odf_common.codec.yaml_syntax import write
    from odf_common.resources.conversion import to_resources, to_snapshots
    from odf_common.resources.resource_manifests import InvalidManifests, written_resources

    read = [*_manifest_files(files, is_recursive=recursive)]
    try:
        plains = [one.plain for file in read for one in written_resources(file.text, file.name)]
    except InvalidManifests as error:
        _refuse([problem.plain() for problem in error.problems])
    kinds = {isinstance(plain, dict) and "$schema" in plain for plain in plains}
    if len(kinds) > 1:
        raise InvalidInput(text="expected resources, or manifests of datasets, but not both")
    if True in kinds:
        _check_offline(read)
        converted = to_snapshots(plains)
    else:
        converted = to_resources(
            snapshot for file in read for snapshot in snapshots_from_text(file.text, file.name)
        )
    for note in converted.notes:
        remark(note)
    echo("---\n".join(map(write, converted.manifests)).rstrip())


@click.command("get")
@click.argument("type_name", metavar="TYPE", required=False, default="", shell_complete=complete_type)
@click.argument("name", required=False, default="", shell_complete=complete_name)
@click.option("--all", "is_all", is_flag=True, help="Resources of all types.")
@click.option("--labels", default="", help='Label filter as JSON, such as {"env": "prod"}.')
@click.option("--account", default="", help="Account that owns them; by default all that you may see.")
@click.option("--phase", default="", help="Only resources in this phase.")
@click.option("--view", type=click.Choice(["canonical", "input"]), default="canonical", show_default=True)
@click.option("--watch", is_flag=True, help="Print each change until Ctrl-C.")
@output_option
def get_command(
    *,
    type_name: str,
    name: str,
    is_all: bool,
    labels: str,
    account: str,
    phase: str,
    view: str,
    watch: bool,
    output: str,
) -> None:
    """Print resources: of a type, or one by its name, id or DID.

    \b
    Example:
      odf get VariableSet
      odf get SecretSet keys -o yaml --view input
      odf get --all
      odf get Source --watch
    """
    if bool(type_name) == is_all:
        raise click.UsageError("give TYPE, or --all")
    if not name and is_resource(type_name):
        type_name, _, name = type_name.partition(":")
    if watch:
        _watch(type_name, name, output)
        return
    if name:
        reply = _get(type_name, name, account)
        document = json.loads(reply.input if view == "input" else reply.json)
        if output == "table":
            print_rows([resource_row(document)], output)
        else:
            print_object(document, output)
        return
    documents = [*_resources_of(type_name, account=account, labels=labels, phase=phase)]
    print_rows(
        [resource_row(one) for one in documents] if output == "table" else documents, output, columns=COLUMNS
    )


@click.command("history")
@click.argument("resource", metavar="TYPE:NAME", shell_complete=complete_resource)
@click.option("--account", default="", help="Account that owns it.")
@output_option
def history_command(*, resource: str, account: str, output: str) -> None:
    """Print the events of a resource, oldest first.

    \b
    Example:
      odf history VariableSet:env
    """
    with clients.resources() as service:
        events = [
            *service.ShowHistory(resource_request(resource, account), timeout=clients.COMMAND_TIMEOUT_SECONDS)
        ]
    rows = [
        {
            "time": Timestamp.from_ms(event.time),
            "event": event.kind,
            "generation": event.generation,
            "by": event.by,
        }
        for event in events
    ]
    print_rows(rows, output)


@click.command("reconcile")
@click.argument("resource", metavar="TYPE:NAME", shell_complete=complete_resource)
@click.option("--account", default="", help="Account that owns it.")
def reconcile_command(*, resource: str, account: str) -> None:
    """Reconcile a resource again although it has not changed.

    \b
    Example:
      odf reconcile Source:orders
    """
    with clients.resources() as service:
        service.ReconcileResource(
            resource_request(resource, account), timeout=clients.COMMAND_TIMEOUT_SECONDS
        )
    remark(f"reconciling {resource}")


@click.group("types", cls=CommandGroup, invoke_without_command=True)
@output_option
@click.pass_context
def types_command(context: click.Context, *, output: str) -> None:
    """Print the types of resources that the node knows, or register others.

    \b
    Example:
      odf types
      odf types add thermometer.json
    """
    if context.invoked_subcommand is not None:
        return
    with clients.resources() as service:
        reply = service.ListResourceTypes(
            pb.ListResourceTypesRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS
        )
    rows = [
        {"type": one.short_name, "about": one.about, "schema": one.schema}
        for one in reply.types
        if one.short_name
    ]
    print_rows(rows, output)


@types_command.command("add")
@click.argument("sources", nargs=-1, required=True, metavar="FILE|URL...")
def types_add(*, sources: tuple[str, ...]) -> None:
    """Register types of resources and labels by their JSON Schemas (draft 2020-12), all together.

    \b
    Each schema has the URI of its type as `$id`. One with the properties `headers` and `spec` is a type of resources;
    its `shortName` may stand for the URI in manifests.

    \b
    Example:
      odf types add thermometer.json room.json
      odf types add https://example.com/schemas/home/v1/Thermometer
    """
    files: list[pb.ManifestFile] = []
    for source in sources:
        if source.startswith(("https://", "http://")):
            files.append(pb.ManifestFile(name=source, text=fetch(source, MAX_BATCH_BYTES)))
        else:
            files += _manifest_files([source], is_recursive=False)
    with clients.resources() as service:
        reply = service.AddResourceTypes(
            pb.AddResourceTypesRequest(files=files), timeout=clients.COMMAND_TIMEOUT_SECONDS
        )
    for one in reply.types:
        print_text(f"registered {one.short_name}: {one.schema}")


def _get(type_name: str, name: str, account: str) -> pb.ResourceReply:
    request = pb.GetResourceRequest(type=type_name, ref=name, account=account)
    with clients.resources() as service:
        reply: pb.ResourceReply = service.GetResource(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    return reply


def _resources_of(type_name: str, *, account: str, labels: str, phase: str) -> Iterable[dict[str, Any]]:
    request = pb.ListResourcesRequest(
        types=[type_name] if type_name else [], account=account, labels=labels, phase=phase, limit=PAGE
    )
    with clients.resources() as service:
        while True:
            reply = service.ListResources(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
            yield from (json.loads(one) for one in reply.resources)
            if not reply.next_cursor:
                return
            request.cursor = reply.next_cursor


def _apply(request: pb.ApplyResourcesRequest) -> list[dict[str, Any]]:
    with clients.resources() as service:
        reply = service.ApplyResources(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    if reply.problems:
        _refuse(json.loads(reply.problems))
    results: list[dict[str, Any]] = json.loads(reply.results)
    return results


def _refuse(problems: Sequence[Mapping[str, Any]]) -> NoReturn:
    """Print all errors of manifests, and end the command."""
    for problem in problems:
        file = problem.get("file") or f"document {problem['document']}"
        place = f"{file}:{problem['line']}" if "line" in problem else file
        path = f" {problem['path']}:" if problem.get("path") else ""
        hint = f" ({problem['hint']})" if problem.get("hint") else ""
        remark(f"{place}:{path} {problem['message']}{hint} [{problem['code']}]")
    remark("nothing was changed")
    raise click.exceptions.Exit(ExitCode.FAILED)


def _check_offline(files: Iterable[pb.ManifestFile]) -> list[dict[str, object]]:
    """Return a row for each manifest; ends with their errors if there are any."""
    from odf_common.resources.registry import Types
    from odf_common.resources.resource_manifests import InvalidManifests, manifests_of, written_batch

    try:
        written = written_batch((file.name, file.text) for file in files)
        manifests = manifests_of(written, Types())
    except InvalidManifests as error:
        _refuse([problem.plain() for problem in error.problems])
    return [{"type": one.type.short_name, "name": str(one.name), "outcome": "valid"} for one in manifests]


def _manifest_files(names: Iterable[str], *, is_recursive: bool) -> Iterable[pb.ManifestFile]:
    for name in names:
        if name == "-":
            yield pb.ManifestFile(name="stdin", text=click.get_binary_stream("stdin").read())
            continue
        path = Path(name)
        try:
            found = [path] if not path.is_dir() else _in_folder(path, is_recursive=is_recursive)
            if not found:
                raise InvalidInput(text=f"no file with {', '.join(SUFFIXES)} is in it", where=name)
            for file in found:
                yield pb.ManifestFile(name=str(file), text=file.read_bytes())
        except OSError as error:
            raise InvalidInput(text=error.strerror or str(error), where=name) from error


def _in_folder(folder: Path, *, is_recursive: bool) -> list[Path]:
    entries = folder.rglob("*") if is_recursive else folder.iterdir()
    return sorted(path for path in entries if path.suffix in SUFFIXES and path.is_file())


def _print_results(results: Sequence[Mapping[str, Any]], output: str) -> None:
    for result in results:
        for warning in result["warnings"]:
            remark(
                f"{result['type']}:{result['name']}: {warning['path']}: {warning['message']} [{warning['code']}]"
            )
    columns = ("outcome", "type", "name", "account", "generation")
    print_rows(results, output, columns=columns)


def _diff_lines(result: Mapping[str, Any]) -> Iterable[str]:
    yield f"{result['outcome']} {result['type']}:{result['name']}"
    for change in result["diff"]:
        if change["before"] is not None:
            yield f"- {change['path']}: {json.dumps(change['before'], ensure_ascii=False)}"
        if change["after"] is not None:
            yield f"+ {change['path']}: {json.dumps(change['after'], ensure_ascii=False)}"


def _await_settled(results: Iterable[Mapping[str, Any]], seconds: float) -> None:
    """Wait until all results are settled; end with exit code 1 if one failed or is not settled in time."""
    end = time.monotonic() + seconds
    failed = False
    for result in results:
        while True:
            document = json.loads(_get(result["type"], result["id"], "").json)
            status = document["status"]
            is_observed = status.get("observedGeneration") == document["headers"]["generation"]
            is_settled = is_observed and status["phase"] in SETTLED and not _is_retried(status)
            if is_settled or time.monotonic() > end:
                break
            time.sleep(POLL_SECONDS)
        if status["phase"] != "Ready" or not is_observed:
            failed = True
            remark(f"{result['type']}:{result['name']} is {status['phase']}{reason(status)}")
    if failed:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _is_retried(status: Mapping[str, Any]) -> bool:
    """Return whether another attempt follows by itself, such as when what it needs appears."""
    return any("retryAt" in condition for condition in status["conditions"].values())


def _watch(type_name: str, name: str, output: str) -> None:
    request = pb.WatchResourcesRequest(types=[type_name] if type_name else [], position=-1)
    with suppress(KeyboardInterrupt), clients.resources() as service:
        for event in service.WatchResources(request):
            document = json.loads(event.json) if event.json else None
            names = set() if document is None else {document["headers"]["name"], event.id}
            if document is None or (name and name not in names):
                continue
            if output == "table":
                row = resource_row(document)
                cells = (event.kind, *(str(row[column]) for column in COLUMNS))
                echo(
                    "  ".join(
                        cell.ljust(width) for cell, width in zip(cells, WATCH_WIDTHS, strict=True)
                    ).rstrip()
                )
            else:
                echo(json.dumps(document))
