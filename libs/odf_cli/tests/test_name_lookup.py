import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from odf_testing.builders import a_dataset

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands import datasets, flow, resources, schemas, source
from odf_cli.name_lookup import is_remote
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.node.v1.ingest_pb2 import SourceRequest, SourcesReply
from odf_common.proto.odf.node.v1.resources_pb2 import ListResourcesReply, ListResourcesRequest


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with the repository `shop` and the dataset `shop/orders` of an account of that name."""
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    LocalRepositories(tmp_path).add(Name("shop"), "https://data.example.org/")
    LocalCatalog(tmp_path).add(CatalogEntry(dataset_id=a_dataset("orders"), alias="shop/orders"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", False),
        ("https://data.example.org/orders", True),
        ("shop/prices", True),
        ("shop/ann/prices", True),
        ("ann/prices", False),
        ("shop/orders", False),
    ],
)
def test_a_name_is_remote_if_it_is_in_a_repository_and_not_local(name: str, expected: bool) -> None:
    assert is_remote(name) is expected


@pytest.mark.parametrize(
    ("arguments", "incomplete", "names"),
    [
        (["tail"], "fl", ["flights", "Flights.late"]),
        (["verify"], "FLIGHTS.", ["Flights.late"]),
        (["source", "show"], "", ["cities", "flights", "Flights.late", "shop/orders"]),
        (["rejected", "list"], "x", []),
    ],
)
def test_a_shell_completes_names_of_datasets_while_the_node_is_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    incomplete: str,
    names: list[str],
) -> None:
    for name in ("flights", "Flights.late", "cities"):
        LocalCatalog(tmp_path).add(CatalogEntry(alias=name, dataset_id=a_dataset(name)))
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    monkeypatch.setenv("_ODF_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["odf", *arguments, incomplete]))
    monkeypatch.setenv("COMP_CWORD", str(len(arguments) + 1))
    with pytest.raises(SystemExit, match="0"):
        cli.main([])
    assert capsys.readouterr().out.split() == [f"plain,{name}" for name in names]


@pytest.mark.parametrize(
    ("incomplete", "completed"),
    [("max", ["maxFuture=1d", "maxRejectedShare=0.5"]), ("BAD", ["badRecords=auto"]), ("x", [])],
)
def test_a_shell_completes_settings_with_their_values(
    monkeypatch: pytest.MonkeyPatch, incomplete: str, completed: list[str]
) -> None:
    settings = {"maxRejectedShare": "0.5", "maxFuture": "1d", "badRecords": "auto"}
    reply = SourcesReply(sources=[SourcesReply.Source(name="default", settings=settings)])
    asked = []

    def show(request: SourceRequest, timeout: float) -> SourcesReply:
        assert timeout
        asked.append(request.ref)
        return reply

    @contextmanager
    def opened(timeout: float) -> Iterator[SimpleNamespace]:
        assert timeout == 0
        yield SimpleNamespace(ShowSources=show)

    monkeypatch.setattr(clients, "ingest", opened)
    command = source.set_
    context = click.Context(command)
    context.params["dataset"] = "orders"
    (parameter,) = (parameter for parameter in command.params if parameter.name == "settings")
    assert [item.value for item in parameter.shell_complete(context, incomplete)] == completed
    assert asked == ["orders"]


def test_a_shell_completes_no_settings_without_a_node() -> None:
    parameter = next(parameter for parameter in source.set_.params if parameter.name == "settings")
    assert parameter.shell_complete(click.Context(source.set_), "max") == []


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[ListResourcesRequest]:
    """Let the node have resources; return what it is asked for."""
    asked: list[ListResourcesRequest] = []
    found = [("Flow", "odf", "nightly"), ("Flow", "bob", "hourly"), ("VariableSet", "odf", "env")]

    def find(request: ListResourcesRequest, timeout: float) -> ListResourcesReply:
        assert timeout
        asked.append(request)
        return ListResourcesReply(
            resources=[
                json.dumps(
                    {"$schema": f"https://a/{kind}", "headers": {"name": name, "account": {"name": account}}}
                ).encode()
                for kind, account, name in found
                if not request.types or kind.lower() == request.types[0].lower()
            ]
        )

    @contextmanager
    def opened(timeout: float) -> Iterator[SimpleNamespace]:
        assert timeout == 0
        yield SimpleNamespace(ListResources=find)

    monkeypatch.setattr(clients, "resources", opened)
    return asked


@pytest.mark.parametrize(
    ("command", "argument", "incomplete", "completed"),
    [
        (resources.history_command, "resource", "", ["Flow:bob/hourly", "Flow:nightly", "VariableSet:env"]),
        (resources.reconcile_command, "resource", "flow:n", ["Flow:nightly"]),
        (resources.history_command, "resource", "Flow:bob/", ["Flow:bob/hourly"]),
        (datasets.delete_command, "datasets", "Var", ["VariableSet:env"]),
        (datasets.rename_command, "dataset", "Flow:ni", ["Flow:nightly"]),
        (resources.get_command, "name", "ni", ["nightly"]),
        (flow.run, "name", "b", ["bob/hourly"]),
    ],
)
def test_a_shell_completes_names_of_resources(
    listed: list[ListResourcesRequest],
    command: click.Command,
    argument: str,
    incomplete: str,
    completed: list[str],
) -> None:
    context = click.Context(command)
    context.params["type_name"] = "Flow"
    (parameter,) = (parameter for parameter in command.params if parameter.name == argument)
    items = [item.value for item in parameter.shell_complete(context, incomplete)]
    assert [item for item in items if item in completed] == completed
    assert set(items) == set(completed)
    assert listed


@pytest.mark.parametrize(
    ("command", "argument", "incomplete", "completed"),
    [
        (resources.get_command, "type_name", "so", ["Source"]),
        (schemas.explain_command, "path", "var", ["VariableSet"]),
        (schemas.explain_command, "path", "Source.spec.me", ["Source.spec.merge"]),
        (schemas.explain_command, "path", "Sorce.spec.me", []),
        (resources.get_command, "name", "x", []),
    ],
)
def test_a_shell_completes_types_without_a_node(
    command: click.Command, argument: str, incomplete: str, completed: list[str]
) -> None:
    (parameter,) = (parameter for parameter in command.params if parameter.name == argument)
    items = parameter.shell_complete(click.Context(command), incomplete)
    assert [item.value for item in items] == completed


@pytest.mark.parametrize("command", [resources.apply_command, resources.diff_command])
def test_a_shell_completes_files_of_manifests(command: click.Command) -> None:
    (parameter,) = (parameter for parameter in command.params if parameter.name == "files")
    assert [item.type for item in parameter.shell_complete(click.Context(command), "va")] == ["file"]
