from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from odf_testing.builders import a_dataset

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands import source
from odf_cli.name_lookup import is_remote
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.node.v1.ingest_pb2 import SourceRequest, SourcesReply


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
