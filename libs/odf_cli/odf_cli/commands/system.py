"""The disk of the node: `odf system backup`, `restore` and `drop-data`."""

from pathlib import Path

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import confirm, output_option, print_object
from odf_cli.suggestions import CommandGroup
from odf_common.errors import Damaged, Refused
from odf_common.proto.odf.node.v1.coordinator_pb2 import DropDataRequest
from odf_common.service.settings import Settings, load


class ResourcesElsewhere(Refused):
    """The store of resources is in PostgreSQL, whose own tools back it up."""

    MESSAGE = "resources are in the database of ODF_RESOURCES"
    ADVICE = (
        "use `pg_dump --format=custom --table='resource*' DATABASE` and `pg_restore`, and copy the keys for secrets: "
        "{text}"
    )


@click.group("system", cls=CommandGroup)
def system_command() -> None:
    """Back up the node's resources, restore them, and free space on its disk.

    \b
    Example:
      odf system backup resources.tar
      odf system drop-data flights.delays.hourly --yes
    """


@system_command.command("drop-data")
@dataset_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def drop_data(*, dataset: str, yes: bool, output: str) -> None:
    """Delete the data slices and checkpoints of a derivative; its chain stays, and `odf pull` recomputes them.

    Refused for roots and copies, if an input no longer has the blocks that the derivative read, and if the data was
    computed by another engine or engine version.

    \b
    Example:
      odf system drop-data flights.delays.hourly --yes
      odf pull flights.delays.hourly
    """
    if not yes:
        confirm(f"Delete the data of {dataset}? The next pull recomputes it.")
    with clients.coordinator() as coordinator:
        dropped = coordinator.DropData(DropDataRequest(ref=dataset), timeout=clients.STREAM_TIMEOUT_SECONDS)
    row = {"dataset": dropped.alias, "slices": dropped.slices, "checkpoints": dropped.checkpoints}
    print_object({**row, "bytes": dropped.size}, output)


@system_command.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output_option
def backup(*, file: Path, output: str) -> None:
    """Write the store of resources, and the keys for their secrets, to a new FILE.

    The node may run. Who has the file can open all secrets of resources, so only its owner can read it; keep it so.
    Datasets and their keys are not in it.

    \b
    Example:
      odf system backup resources.tar
    """
    from odf_common.adapters.local.resource_backup import write_backup

    settings = _settings()
    facts = write_backup(settings.home, file, settings.resource_keys_file)
    print_object({"file": str(file), "resources": facts.resources, "position": facts.position}, output)


@system_command.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a store is replaced.")
@output_option
def restore(*, file: Path, yes: bool, output: str) -> None:
    """Replace the store of resources by that of a backup, and add its keys; the node must not run.

    Existing keys are kept behind those of the backup. A store or backup of a newer release is refused.

    \b
    Example:
      odf down
      odf system restore resources.tar --yes
    """
    from odf_common.adapters.local.resource_backup import existing_store, restore_backup

    settings = _settings()
    try:
        existing = existing_store(settings.home)
        what = None if existing is None else f"{existing.resources} resources"
    except Damaged:
        what = "a damaged store of resources"
    if what is not None and not yes:
        confirm(f"Replace {what} in {settings.home} by those of {file}?")
    facts = restore_backup(settings.home, file, settings.resource_keys_file)
    print_object({"file": str(file), "resources": facts.resources, "position": facts.position}, output)


def _settings() -> Settings:
    settings = load()
    if settings.resources is not None:
        keys = settings.resource_keys_file or settings.home / "keys" / "resources.jwks"
        raise ResourcesElsewhere(text=str(keys))
    return settings
