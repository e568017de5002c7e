"""Files that others published, read with the options that they need, and compared with what pandas reads."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from odf_common.data.ddl import ddl_to_schema
from odf_common.metadata.steps import ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import read_batch, read_file


def folder(package: str) -> Path:
    """Return a package's folder without importing it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


PENGUINS = folder("palmerpenguins") / "data"
VEGA = folder("vega_datasets") / "_data"


def same(table: pa.Table, frame: "pd.DataFrame") -> None:
    """Compare values, where a null is any of pandas' missing values."""
    assert table.column_names == list(frame.columns)
    for name in frame.columns:
        expected = [None if pd.isna(value) else value for value in frame[name].to_list()]
        assert table.column(name).to_pylist() == expected, name


def test_penguins_have_na_and_columns_that_are_inferred() -> None:
    file = PENGUINS / "penguins.csv"
    table = read_file(ReadStepCsv(header=True, infer_schema=True, null_value="NA"), file, None)
    types = {one.name: str(one.type) for one in table.schema}
    assert types["species"] == "string"
    assert types["bill_length_mm"] == "double"
    assert types["body_mass_g"] == "int64"
    assert table.column("sex").null_count == 11
    same(table, pd.read_csv(file))


def test_penguins_have_quoted_values_with_separators_and_odd_names() -> None:
    file = PENGUINS / "penguins-raw.csv"
    columns = ["studyName STRING", "`Sample Number` INT", "Species STRING", "Region STRING", "Island STRING"]
    columns += ["Stage STRING", "`Individual ID` STRING", "`Clutch Completion` STRING", "`Date Egg` DATE"]
    columns += ["`Culmen Length (mm)` DOUBLE", "`Culmen Depth (mm)` DOUBLE", "`Flipper Length (mm)` INT"]
    columns += ["`Body Mass (g)` INT", "Sex STRING", "`Delta 15 N (o/oo)` DOUBLE"]
    columns += ["`Delta 13 C (o/oo)` DOUBLE", "Comments STRING"]
    table = read_file(ReadStepCsv(header=True, null_value="NA"), file, ddl_to_schema(columns))
    frame = pd.read_csv(file)
    frame["Date Egg"] = pd.to_datetime(frame["Date Egg"]).dt.date
    same(table, frame)
    assert "Adult, 1 Egg Stage" in table.column("Stage").to_pylist()


def test_temperatures_have_timestamps_of_a_custom_format() -> None:
    for name, format_text, java in (
        ("sf-temps.csv", "%Y/%m/%d %H:%M:%S", "yyyy/MM/dd HH:mm:ss"),
        ("seattle-temps.csv", "%Y/%m/%d %H:%M", "yyyy/MM/dd HH:mm"),
    ):
        schema = ddl_to_schema(["temp DOUBLE", "date TIMESTAMP(3)"])
        frame = pd.read_csv(VEGA / name)[["temp", "date"]]
        expected = pd.to_datetime(frame["date"], format=format_text, utc=True)
        for one in (format_text, java):
            table = read_file(ReadStepCsv(header=True, timestamp_format=one), VEGA / name, schema)
            assert table.column("temp").to_pylist() == frame["temp"].to_list()
            assert table.column("date").to_pylist() == expected.to_list()


def test_stocks_have_dates_with_names_of_months() -> None:
    schema = ddl_to_schema(["symbol STRING", "date DATE", "price DOUBLE"])
    frame = pd.read_csv(VEGA / "stocks.csv")
    for one in ("MMM d yyyy", "%b %d %Y"):
        table = read_file(ReadStepCsv(header=True, date_format=one), VEGA / "stocks.csv", schema)
        expected = pd.to_datetime(frame["date"], format="%b %d %Y").dt.date
        assert table.column("date").to_pylist() == expected.to_list()


def test_cars_are_an_array_of_objects_with_nulls() -> None:
    file = VEGA / "cars.json"
    columns = ["Name STRING", "Miles_per_Gallon DOUBLE", "Horsepower INT", "Year DATE"]
    table = read_file(ReadStepJson(date_format="yyyy-MM-dd"), file, ddl_to_schema(columns))
    cars: list[dict[str, Any]] = json.loads(file.read_text())
    for name in ("Name", "Miles_per_Gallon", "Horsepower"):
        assert table.column(name).to_pylist() == [car[name] for car in cars]
    assert [str(day) for day in table.column("Year").to_pylist()] == [car["Year"] for car in cars]
    assert table.column("Horsepower").null_count == 6


def test_the_same_records_in_every_format_are_the_same(tmp_path: Path) -> None:
    cars = json.loads((VEGA / "cars.json").read_text())
    schema = ddl_to_schema(["Name STRING", "Cylinders INT", "Miles_per_Gallon DOUBLE", "Year DATE"])
    array = read_file(ReadStepJson(), VEGA / "cars.json", schema)
    nested = json.dumps({"meta": {"n": 1}, "data": {"cars": cars}}).encode("utf-16")
    lines = "\n".join(json.dumps(car) for car in cars).encode("utf-16")
    assert read_batch(ReadStepJson(sub_path="data.cars", encoding="utf-16"), nested, schema).equals(array)
    assert read_batch(ReadStepNdJson(encoding="utf-16"), lines, schema).equals(array)
    file = tmp_path / "cars.csv"
    pd.DataFrame(cars)[schema.names].to_csv(file, index=False, na_rep="?", encoding="latin-1", sep=";")
    step = ReadStepCsv(header=True, null_value="?", encoding="latin-1", separator=";")
    assert read_file(step, file, schema).equals(array)
