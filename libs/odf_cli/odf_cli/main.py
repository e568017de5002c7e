"""The `odf` command: finds a subcommand by name, imports only its module, runs it, and prints errors."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from odf_cli.exit_codes import ExitCode, importing, keeping_interrupts
from odf_cli.output import print_misuse, remark
from odf_cli.suggestions import CommandGroup
from odf_common.errors import OdfError, VerificationFailed, explain

PACKAGE: Final = "odf_cli.commands"
# The descriptions are here so that `odf --help` imports no command.
COMMANDS: Final = {
    "up": "Start the node: Kafka, Redis and the services.",
    "down": "Stop the node.",
    "status": "Show the node's parts, problems and datasets.",
    "logs": "Show the end of the logs of the node's parts.",
    "config": "Show all settings.",
    "doctor": "Check this machine and the node.",
    "topics": "Show the topics that the node needs.",
    "new": "Write a manifest from a sample of the data.",
    "add": "Create datasets from manifests.",
    "apply": "Make resources as manifests describe them.",
    "convert": "Convert manifests of datasets to resources, and back.",
    "diff": "Show what applying manifests would change.",
    "get": "Show resources.",
    "history": "Show the events of a resource.",
    "reconcile": "Reconcile a resource again.",
    "types": "Show and register types of resources.",
    "flow": "Run flows now, and show their runs.",
    "explain": "Explain the fields of a type of resource.",
    "commit": "Append metadata events to a dataset.",
    "list": "List datasets.",
    "log": "Show a dataset's metadata chain.",
    "tail": "Show a dataset's last records.",
    "inspect": "Show a dataset's schema, lineage or query, or a block.",
    "rename": "Rename a dataset.",
    "delete": "Delete a dataset.",
    "reset": "Move a dataset's head back.",
    "ref": "Manage a dataset's references other than the head.",
    "compare": "Show which of two chains is ahead.",
    "ingest": "Append files to a dataset.",
    "rejected": "List, retry or drop rejected messages.",
    "source": "Show sources, change their settings, resume stopped ones.",
    "pull": "Bring datasets up to date.",
    "push": "Copy a dataset to another node, a folder or a bucket.",
    "repo": "Manage named repositories.",
    "search": "Find datasets here and in repositories.",
    "alias": "Manage the URLs that datasets are pulled from and pushed to.",
    "webhook": "Notify URLs when a dataset changes.",
    "login": "Log in to another node.",
    "logout": "Delete the stored token of another node.",
    "account": "Manage the accounts of this node.",
    "token": "Create and revoke the tokens of this node.",
    "access": "Show and change who may read and write a dataset.",
    "engine": "Continue derivatives with the installed version of the engine.",
    "verify": "Check data against the chain, by hashes and replay.",
    "key": "Move a dataset's private key to another node.",
    "secret": "Encrypt secrets for manifests.",
    "prove": "Prove ownership of a dataset, or check a proof.",
    "sql": "Query datasets with Spark SQL.",
    "hash": "Print logical or physical hashes of files.",
    "block": "Encode and decode metadata blocks.",
    "parse-ref": "Parse dataset references.",
    "system": "Back up and restore resources; free space on disk.",
    "completion": "Print a completion script for your shell.",
    "schema": "Print the schema of manifests.",
}
# The modules that hold several commands; that of any other has its name.
MODULES: Final = {
    command: module
    for module, commands in {
        "accounts": ("account", "token", "access", "login", "logout"),
        "chains": ("log", "ref", "reset", "compare", "commit"),
        "datasets": ("add", "rename", "delete"),
        "engine": ("sql", "verify"),
        "keys": ("key", "prove"),
        "node": ("down", "logs", "config", "doctor", "topics", "completion"),
        "plumbing": ("hash", "block", "parse-ref"),
        "schemas": ("schema", "explain"),
        "resources": ("apply", "convert", "diff", "get", "history", "reconcile", "types"),
        "repositories": ("repo", "search", "alias", "push"),
    }.items()
    for command in commands
}
EXAMPLE: Final = """\b
Example:
  odf up --detach
  odf add orders.yaml
  odf ingest orders orders.ndjson
  odf sql "SELECT count(*) FROM orders"
"""


class Commands(CommandGroup):
    """A group whose commands are in modules of `odf_cli/commands`, such as `parse_ref_command` for `odf parse-ref`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command, and return the command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        with importing():
            module = importlib.import_module(f"{PACKAGE}.{MODULES.get(cmd_name, cmd_name)}")
            command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
            if "structlog" in sys.modules:  # it logs to stdout, where results are, unless told otherwise
                from odf_common.service.logging import configure_command

                configure_command()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and descriptions of all commands to the help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands, epilog=EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="odf-common", message="odf %(version)s")
def odf() -> None:
    """Datasets that anyone can verify: publish records, derive datasets with SQL, replay and share them.

    A command talks to the node whose data is in $ODF_HOME (default: ./.odf). See `odf COMMAND --help` for details.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    try:
        with keeping_interrupts():
            result = odf.main(arguments, prog_name="odf", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        print_misuse(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):  # click's own: the end of the input at a question
        remark("aborted")
        return ExitCode.ABORTED
    except OdfError as error:
        remark(explain(error))
        return ExitCode.VERIFICATION_FAILED if isinstance(error, VerificationFailed) else ExitCode.FAILED
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Keep the interpreter from failing when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except OSError as error:
        # A file that cannot be read or written: its name and the reason say enough.
        where = f"{error.filename}: " if error.filename else ""
        remark(f"error: {where}{error.strerror or error}")
        return ExitCode.FAILED
    return result if isinstance(result, int) else ExitCode.OK
