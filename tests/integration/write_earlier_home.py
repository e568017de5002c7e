"""Writes `home_of_semantics_1.tar.xz`: a home with datasets of every kind, by the node of a checkout of an earlier release.

`python tests/integration/write_earlier_home.py CHECKOUT/.venv/bin/odf ARCHIVE`; it imports nothing of this release.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

KEPT: Final = ("datasets", "kafka", "keys", "names", "redis")
TIME: Final = "event_time TIMESTAMP(3)"
ROOTS: Final[Mapping[str, tuple[Mapping[str, Any], Sequence[str]]]] = {
    "moments": ({"kind": "Append"}, (TIME, "id BIGINT", "amount DECIMAL(38, 18)", "text STRING")),
    "deals": ({"kind": "Ledger", "primaryKey": ["id"]}, (TIME, "id BIGINT", "symbol STRING", "price BIGINT")),
    "rates": (
        {"kind": "ChangelogStream", "primaryKey": ["symbol", "event_time"]},
        ("op INT", TIME, "symbol STRING", "rate BIGINT"),
    ),
    "stock": ({"kind": "Snapshot", "primaryKey": ["sku"]}, (TIME, "sku STRING", "pieces BIGINT")),
    "accounts": (
        {"kind": "UpsertStream", "primaryKey": ["id"]},
        ("op INT", TIME, "id BIGINT", "owner STRING"),
    ),
    "members": ({"kind": "UpsertStream", "primaryKey": ["id"]}, ("op INT", TIME, "id BIGINT", "name STRING")),
}
QUERIES: Final[Mapping[str, str]] = {
    "per.record": "SELECT event_time, id, price * 2 AS twice FROM deals WHERE price > 1",
    "stocked": "SELECT event_time, sku, pieces FROM stock WHERE pieces > 0",
    "daily": "SELECT window.start AS event_time, count(*) AS n FROM deals GROUP BY window(event_time, '1 day')",
    "joined": (
        "SELECT d.event_time, d.id, m.text FROM deals AS d JOIN moments AS m ON d.id = m.id "
        "AND m.event_time BETWEEN d.event_time - INTERVAL 1 HOUR AND d.event_time + INTERVAL 1 HOUR"
    ),
    "valued": (
        "SELECT d.event_time, d.id, d.price * r.rate AS worth FROM deals AS d "
        "JOIN rates FOR SYSTEM_TIME AS OF d.event_time AS r ON d.symbol = r.symbol"
    ),
    "grouped": "SELECT max(event_time) AS event_time, symbol, count(*) AS n FROM deals GROUP BY symbol",
    "best": (
        "SELECT event_time, symbol, price FROM (SELECT *, row_number() OVER (PARTITION BY symbol "
        "ORDER BY price DESC, id) AS place FROM deals) WHERE place <= 2"
    ),
    "running": (
        "SELECT event_time, id, sum(price) OVER (PARTITION BY symbol ORDER BY event_time) AS total FROM deals"
    ),
    "fine": "SELECT event_time - INTERVAL 1 MICROSECOND AS event_time, id FROM moments",
    "fine.grouped": (
        "SELECT max(event_time - INTERVAL 1 MICROSECOND) AS event_time, symbol, count(*) AS n "
        "FROM deals GROUP BY symbol"
    ),
    "fine.read": "SELECT event_time, id + 1 AS next FROM fine",
    "lossy": "SELECT event_time, id, amount * amount AS squared FROM moments",
    "xml": "SELECT event_time, xpath_int(text, 'a/b') AS b FROM moments",
    "owners": "SELECT window.start AS event_time, count(*) AS n FROM accounts GROUP BY window(event_time, '1 day')",
    "joiners": "SELECT window.start AS event_time, count(*) AS n FROM members GROUP BY window(event_time, '1 day')",
}  # fmt: skip


def day(number: int, hour: int = 0) -> str:
    """Return a time in 1969."""
    return f"1969-12-{number:02}T{hour:02}:00:00Z"


def deal(id_: int, symbol: str, price: int) -> Mapping[str, Any]:
    """Return a record of `deals`."""
    return {"event_time": day(id_, 12), "id": id_, "symbol": symbol, "price": price}


def moment(id_: int) -> Mapping[str, Any]:
    """Return a record of `moments`."""
    return {
        "event_time": day(id_, 12),
        "id": id_,
        "amount": "0.000000123456789012",
        "text": f"<a><b>{id_}</b></a>",
    }


RECORDS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "moments": [moment(1), moment(2), moment(3)],
    "rates": [{"op": 0, "event_time": day(1), "symbol": symbol, "rate": 3} for symbol in "XY"],
    "deals": [deal(1, "X", 5), deal(2, "Y", 7), deal(3, "X", 4)],
    "stock": [
        {"event_time": day(1), "sku": "a", "pieces": 4},
        {"event_time": day(1), "sku": "b", "pieces": 0},
    ],
    "accounts": [
        {"op": 0, "event_time": day(1, 1), "id": 1, "owner": "Ann"},
        {"op": 1, "event_time": day(1, 2), "id": 1, "owner": "Bob"},
        {"op": 0, "event_time": day(3), "id": 2, "owner": "Cem"},
    ],
    "members": [
        {"op": 0, "event_time": day(1, hour), "id": hour, "name": name} for hour, name in enumerate(("Ida", "Jon", "Kim"))
    ],
}  # fmt: skip
# A retraction while its window is open, which that engine applied.
LEFT: Final = {"op": 1, "event_time": day(1, 3), "id": 1, "name": "Jon"}


def manifests() -> str:
    """Return all datasets as one YAML text; JSON is YAML."""
    roots = {
        name: [{"kind": "AddPushSource", "sourceName": "default", "read": {"kind": "NdJson", "schema": columns}, "merge": merge}]
        for name, (merge, columns) in ROOTS.items()
    }  # fmt: skip
    derived = {
        name: [
            {
                "kind": "SetTransform",
                "inputs": [
                    {"datasetRef": one, "alias": one} for one in (*ROOTS, "fine") if f" {one}" in query
                ],
                "transform": {"kind": "Sql", "engine": "spark", "query": query},
            }
        ]
        for name, query in QUERIES.items()
    }
    texts = [
        {"name": name, "kind": "Root" if name in roots else "Derivative", "metadata": events}
        for name, events in {**roots, **derived}.items()
    ]
    return "\n---\n".join(
        json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": text}) for text in texts
    )


def write(odf: str, archive: Path) -> None:
    """Start a node in a new home, fill and stop it, and archive the home."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        environment = {**os.environ, "ODF_HOME": str(home)}

        def run(*words: str, stdin: str = "") -> None:
            done = subprocess.run([odf, *words], input=stdin.encode(), env=environment, check=False)
            if done.returncode:
                raise SystemExit(f"odf {' '.join(words)}: exit code {done.returncode}")

        run("up", "--detach")
        try:
            run("add", "-", stdin=manifests())
            for name, records in RECORDS.items():
                run("ingest", name, "-", stdin="\n".join(map(json.dumps, records)))
            run("pull", "--all")
            run("ingest", "members", "-", stdin=json.dumps(LEFT))
            run("pull", "--all")
            run("verify", "--all")
        finally:
            run("down")
        with tarfile.open(archive, "w:xz") as file:
            for name in KEPT:
                file.add(home / name, f"home/{name}")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
