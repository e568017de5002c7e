"""Files that others published, and files with false lengths, compared with what pandas reads."""

import json
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import read_batch, read_file
from odf_ingest.read.geo import esri_shapefile
from odf_ingest.read.geo.esri_shapefile import _require_sound, _rings, geometries

BOX = struct.pack("<4d", 0, 0, 9, 9)
NULL, POINT, LINE, POLYGON, MULTIPOINT = 0, 1, 3, 5, 8


def points(count: int) -> bytes:
    return b"".join(struct.pack("<2d", number, number) for number in range(count))


def parts_of(
    type_: int, starts: list[int], count: int, *, claimed: int | None = None, more: bytes = b""
) -> bytes:
    """Return a line or a polygon: its parts begin at points `starts`."""
    head = struct.pack("<i", type_) + BOX
    numbers = struct.pack("<2i", len(starts), count if claimed is None else claimed)
    return head + numbers + struct.pack(f"<{len(starts)}i", *starts) + points(count) + more


def multipoint(
    count: int, *, claimed: int | None = None, type_: int = MULTIPOINT, more: bytes = b""
) -> bytes:
    number = struct.pack("<i", count if claimed is None else claimed)
    return struct.pack("<i", type_) + BOX + number + points(count) + more


def z_of(count: int) -> bytes:
    """Return the range and the values of the third coordinate."""
    return bytes(16 + 8 * count)


SOUND = [
    (struct.pack("<i", NULL), 0),
    (struct.pack("<i", POINT) + points(1), 0),
    (struct.pack("<i", 21) + bytes(24), 0),
    (struct.pack("<i", 11) + bytes(24), 0),
    (parts_of(LINE, [0], 2), 0),
    (parts_of(LINE, [0, 2, 5], 6), 0),
    (parts_of(POLYGON, [0], 4), 1),
    (parts_of(POLYGON, [0, 4, 8], 12), 3),
    (parts_of(15, [0, 4], 8, more=z_of(8)), 2),
    (parts_of(25, [0], 4), 1),
    (parts_of(13, [0], 2, more=z_of(2)), 0),
    (parts_of(POLYGON, [], 0), 0),
    (multipoint(0), 0),
    (multipoint(3), 0),
    (multipoint(3, type_=18, more=z_of(3)), 0),
    (multipoint(3, type_=28), 0),
]


@pytest.mark.parametrize(("content", "rings"), SOUND)
def test_a_sound_shape_has_its_rings(content: bytes, rings: int) -> None:
    assert _rings(content) == rings


@pytest.mark.parametrize("content", [one for one, _ in SOUND if len(one) > 4])
def test_a_shape_that_is_one_byte_too_short_is_refused(content: bytes) -> None:
    """A null shape, of four bytes, has nothing to cut off."""
    with pytest.raises((ValueError, struct.error)):
        _rings(content[:-1])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (struct.pack("<i", 31) + bytes(100), "type 31 has no geometry"),
        (struct.pack("<i", 2) + bytes(100), "type 2 has no geometry"),
        (struct.pack("<i", POINT) + bytes(15), "too short for a point"),
        (parts_of(LINE, [0], 2, claimed=3), "it claims 3 points"),
        (parts_of(LINE, [0], 2, claimed=-1), "it claims -1 points"),
        (multipoint(3, claimed=4), "it claims 4 points"),
        (multipoint(3, claimed=-1), "it claims -1 points"),
        (multipoint(3, type_=18), "it claims 3 points"),
        (parts_of(15, [0], 4), "it claims 4 points"),
        (parts_of(LINE, [], 2), "in no part"),
        (parts_of(LINE, [1], 2), "does not start at its first point"),
        (parts_of(LINE, [0, 2, 1], 4), "not in order"),
        (parts_of(LINE, [0, 2, 2], 4), "not in order"),
        (parts_of(LINE, [0, 4], 4), "not in order"),
        (struct.pack("<i", LINE) + BOX + struct.pack("<2i", -1, 0), "it claims -1 parts"),
        (struct.pack("<i", LINE) + BOX + struct.pack("<2i", 1, 0), "it claims 1 parts"),
    ],
)
def test_a_shape_that_claims_what_it_does_not_have_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _rings(content)


def file_of(*contents: bytes, lengths: tuple[int, ...] | None = None) -> bytes:
    """Return a .shp file of records, with these lengths in 16-bit words."""
    records = b"".join(
        struct.pack(">2i", number, len(content) // 2 if lengths is None else lengths[number - 1]) + content
        for number, content in enumerate(contents, start=1)
    )
    head = struct.pack(">i", 9994) + bytes(20) + struct.pack(">i", (100 + len(records)) // 2)
    return head + struct.pack("<2i", 1000, POLYGON) + BOX + bytes(32) + records


def test_records_follow_each_other_to_the_end_of_the_file() -> None:
    null, line = struct.pack("<i", NULL), parts_of(LINE, [0], 2)
    whole = file_of(null, line, null)
    _require_sound(whole)
    assert [one is None for one in geometries(whole)] == [True, False, True]
    assert len(list(geometries(whole + b"more"))) == 3, "what follows the end that the header names"
    assert list(geometries(file_of())) == []
    for cut in (1, 3, 4, 11):
        with pytest.raises(InvalidInput, match=r"record 3: the \.shp file ends inside"):
            _require_sound(whole[:-cut])
    for lengths, number in (((1, 2, 2), 1), ((3, 2, 2), 2), ((2, 1000, 2), 2)):
        with pytest.raises(InvalidInput, match=f"record {number}"):
            _require_sound(file_of(null, null, null, lengths=lengths))


@pytest.mark.parametrize(("most", "is_taken"), [(13, True), (12, False)])
def test_the_squares_of_the_rings_of_all_polygons_are_summed(
    monkeypatch: pytest.MonkeyPatch, most: int, is_taken: bool
) -> None:
    monkeypatch.setattr(esri_shapefile, "MAX_RING_PAIRS", most)
    content = file_of(
        parts_of(POLYGON, [0, 4], 8), parts_of(LINE, [0, 2, 4], 6), parts_of(POLYGON, [0, 4, 8], 12)
    )
    if is_taken:
        _require_sound(content)
    else:
        with pytest.raises(InvalidInput, match="record 3: polygons with too many rings"):
            _require_sound(content)


@pytest.mark.parametrize("content", [b"", bytes(99), bytes(100), struct.pack("<i", 9994) + bytes(96)])
def test_an_invalid_shapefile_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="is not a shapefile"):
        geometries(content)


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
