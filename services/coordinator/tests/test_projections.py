"""Projections: computed from datasets, refreshed after changes, read by name in SQL, and removed."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from odf_testing.coordinator import Coordinator

from odf_cli.rows import arrow_table
from odf_common.errors import InvalidInput, NotFound, Refused
from odf_common.resources.conditions import PROJECTION_STATE
from odf_common.resources.failures import DependencyMissing, DependencyNotReady
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.operations.projection_files import FOLDER, ProjectionFiles
from odf_coordinator.resources.lookups import NODE_ACCOUNT
from odf_coordinator.resources.projection_controller import (
    ProjectionController,
    check_projection,
    read_query,
    sql_of,
)

ID = ResourceId("5f0c7c9e-7a2b-4a53-9a0e-3a4d7b7f5c11")
ANOTHER = ResourceId("5f0c7c9e-7a2b-4a53-9a0e-3a4d7b7f5c12")
STORED = ResourceId("5f0c7c9e-7a2b-4a53-9a0e-3a4d7b7f5c13")
SELECT = "SELECT * FROM `cities`"


def spec(*inputs: str, **project: Any) -> dict[str, Any]:
    transform = {"kind": "Sql", "engine": "spark", "query": SELECT} | project
    return {"inputs": [{"datasetRef": name} for name in inputs], "project": transform}


def resource(
    name: str = "newest", ref: str = "cities", id: ResourceId = ID, account: str = "odf"
) -> dict[str, Any]:
    headers = {"id": id, "name": name, "account": {"name": account}}
    return {"headers": headers, "spec": spec(ref, query=f"SELECT * FROM `{ref}`")}


class Bench:
    """Projections of a coordinator in memory."""

    def __init__(self, node: Coordinator) -> None:
        self.node, self.requested = node, list[ResourceId]()
        self.controller = ProjectionController(node.record_reader, self.requested.append, lambda: (STORED,))
        node.committer.listen(self.controller.on_committed)

    def reconcile(self, **fields: Any) -> Mapping[str, Any]:
        condition = self.controller.reconcile(resource(**fields))[str(PROJECTION_STATE)]
        assert condition is not None
        return dict(condition["details"])

    def run_until_requested(self, id: ResourceId) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=self.controller.run, args=(stop,))
        thread.start()
        while id not in self.requested:
            stop.wait(0.05)
        stop.set()
        thread.join()

    def cities(self, table: str = "newest") -> list[str]:
        rows = arrow_table(self.node.record_reader.query(f"SELECT * FROM `{table}`"))
        return list(rows["city"].to_pylist())

    def files(self) -> list[Path]:
        return sorted((self.node.home / FOLDER).glob("*/*.parquet"))


@pytest.fixture
def bench(pair: Coordinator) -> Bench:
    return Bench(pair)


def test_a_projection_is_computed_once_and_read_by_name(bench: Bench) -> None:
    details = bench.reconcile()
    handle = bench.node.find("cities")
    assert details == {
        "table": "newest",
        "records": 1,
        "inputs": [{"alias": "cities", "datasetId": str(handle.id), "head": str(handle.state.head)}],
    }
    assert bench.cities("NEWEST") == ["Oslo"]
    (file,) = bench.files()
    written = file.stat().st_mtime_ns
    assert bench.reconcile() == details
    assert file.stat().st_mtime_ns == written
    assert file.stat().st_mode & 0o077 == 0 or file.parent.stat().st_mode & 0o077 == 0


def test_a_change_of_an_input_requests_an_attempt_that_replaces_the_result(bench: Bench) -> None:
    bench.reconcile()
    bench.reconcile(name="other", id=ANOTHER, ref="cities.copy")
    bench.node.push("cities", "Rome", minute=1)
    assert bench.cities() == ["Oslo"]
    bench.run_until_requested(ID)
    assert bench.requested[0] == STORED  # its inputs may have changed while nothing ran
    assert ANOTHER not in bench.requested
    assert bench.reconcile()["records"] == 2
    assert bench.cities() == ["Oslo", "Rome"]


def test_the_former_result_stays_for_queries_that_read_it_and_no_older_one(bench: Bench) -> None:
    for minute, city in enumerate(("Rome", "Bonn", "Lima"), 1):
        bench.reconcile()
        bench.node.push("cities", city, minute=minute)
    bench.reconcile()
    assert sorted(pq.read_metadata(file).num_rows for file in bench.files()) == [3, 4]


def test_results_survive_a_restart_and_a_damaged_one_is_computed_again(bench: Bench) -> None:
    bench.reconcile()
    reopened = ProjectionFiles(bench.node.home / FOLDER)
    found = reopened.of_projection(ID)
    assert found is not None
    assert (found.origin.alias, found.records) == ("newest", 1)
    (file,) = bench.files()
    file.write_bytes(b"damaged")
    assert ProjectionFiles(bench.node.home / FOLDER).of_projection(ID) is None
    assert not file.exists()


def test_a_renamed_projection_has_its_new_name_and_a_removed_one_none(bench: Bench) -> None:
    bench.reconcile()
    bench.reconcile(name="latest")
    assert bench.cities("latest") == ["Oslo"]
    with pytest.raises(NotFound, match="newest"):
        bench.cities("newest")
    bench.controller.finalize(resource(name="latest"))
    assert bench.files() == []
    with pytest.raises(NotFound, match="latest"):
        bench.cities("latest")
    bench.controller.finalize(resource(name="latest"))  # repeated after a kill


def test_what_a_projection_waits_for(bench: Bench, root: str) -> None:
    with pytest.raises(DependencyMissing, match="the input citis does not exist"):
        bench.reconcile(ref="citis")
    undeclared = root.replace(", ddlSchema: [event_time TIMESTAMP, city STRING]", "")
    bench.node.add(undeclared.replace("name: cities", "name: empty"))
    with pytest.raises(DependencyNotReady, match="no data yet"):
        bench.reconcile(ref="empty")
    with pytest.raises(DependencyMissing, match=r"the input empty\.copy does not exist"):
        bench.reconcile(ref="empty.copy", id=ANOTHER)
    bench.node.add(undeclared.replace("name: cities", "name: empty.copy"))
    bench.run_until_requested(ANOTHER)


def test_a_name_of_a_dataset_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused, match="the dataset cities exists"):
        bench.reconcile(name="cities")


@pytest.mark.parametrize(
    ("refused", "where", "text"),
    [
        (spec(), "spec.inputs", "at least one input"),
        (spec("cities", engine="flink"), "spec.project.engine", "by spark, not by flink"),
        (
            spec("cities", temporalTables=[{"name": "cities", "primaryKey": ["city"]}]),
            "spec.project.temporalTables",
            "no",
        ),
        (spec("cities", "Cities"), "spec", "two inputs"),
        (spec("no//name"), "spec.inputs[0].datasetRef", "name"),
    ],
)
def test_what_is_refused_before_it_is_stored(refused: dict[str, Any], where: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text) as raised:
        check_projection(refused)
    assert raised.value.where == where


def test_steps_become_one_statement() -> None:
    del (steps := spec("cities"))["project"]["query"]
    steps["project"]["queries"] = [{"alias": "a", "query": "SELECT 1 -- one"}, {"query": "SELECT * FROM a"}]
    sql = sql_of(read_query(steps, NODE_ACCOUNT))
    assert sql == "WITH `a` AS (\nSELECT 1 -- one\n), `result` AS (\nSELECT * FROM a\n) SELECT * FROM result"
