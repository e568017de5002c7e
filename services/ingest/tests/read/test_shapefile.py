"""Shapefiles and GeoJSON."""

import json
import struct
import time
import zipfile
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import shapefile

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepEsriShapefile, ReadStepGeoJson, ReadStepNdGeoJson
from odf_ingest.read import infer_records, read_batch, read_file, read_inferred, read_records
from odf_ingest.read.geo import esri_shapefile
from odf_ingest.read.geo.esri_shapefile import _logical

WKT = 'GEOGCS["GCS_WGS_1984",DATUM["D_WGS_1984"]]'
SQUARE = [(0, 0), (0, 4), (4, 4), (4, 0), (0, 0)]  # clockwise: an outer ring
HOLE = [(1, 1), (2, 1), (2, 2), (1, 2), (1, 1)]
SCHEMA = ddl_to_schema(["name STRING", "people BIGINT", "area DECIMAL(18,5)", "founded DATE", "big BOOLEAN"])
ROWS = [("Zürich", 421878, 87.88, "19230102", True), ("Rom", None, None, None, None)]


def shapefiles(encoding: str = "utf-8", type_: int = shapefile.POLYGON) -> dict[str, bytes]:
    """Return the files of a shapefile with two records."""
    files = {name: BytesIO() for name in ("shp", "shx", "dbf")}
    with shapefile.Writer(**files, encoding=encoding, shapeType=type_) as writer:
        writer.field("name", "C", size=20)
        writer.field("people", "N", size=10)
        writer.field("area", "N", size=18, decimal=5)
        writer.field("founded", "D")
        writer.field("big", "L")
        for row in ROWS:
            writer.record(*row)
        if type_ == shapefile.POLYGON:
            writer.poly([SQUARE, HOLE])
            writer.null()
        elif type_ == shapefile.POINTZ:
            writer.pointz(1, 2, 3)
            writer.pointz(4, 5, 6)
        else:
            writer.line([[(0, 0), (1, 1)], [(2, 2), (3, 3)]])
            writer.line([[(0, 0), (1, 1)]])
    return {name: file.getvalue() for name, file in files.items()}


@pytest.fixture
def files() -> dict[str, bytes]:
    return shapefiles()


def zipped(files: dict[str, bytes], stem: str = "cities") -> bytes:
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for suffix, content in files.items():
            file.writestr(f"{stem}.{suffix}", content)
    return archive.getvalue()


def rows(files: dict[str, bytes], **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_batch(
        ReadStepEsriShapefile(**options), zipped(files), None
    ).to_pylist()
    return found


def test_attributes_become_columns_and_the_shape_a_geometry(tmp_path: Path) -> None:
    file = tmp_path / "cities.zip"
    file.write_bytes(zipped(shapefiles() | {"prj": WKT.encode(), "cpg": b"UTF-8"}))
    first, second = read_file(ReadStepEsriShapefile(), file, None).to_pylist()
    geometry = {"type": "Polygon", "coordinates": [[list(p) for p in ring] for ring in (SQUARE, HOLE)]}
    assert json.loads(first.pop("geometry")) == geometry
    assert first == {
        "name": "Zürich",
        "people": 421878,
        "area": 87.88,
        "founded": datetime(1923, 1, 2, tzinfo=UTC),
        "big": True,
        "projection": WKT,
    }
    assert second == {**dict.fromkeys(first), "name": "Rom", "geometry": None, "projection": WKT}


def test_declared_types_are_exact(files: dict[str, bytes]) -> None:
    files["dbf"] = files["dbf"].replace(b"          87.88000", b"123456789012.34567")
    table = read_batch(ReadStepEsriShapefile(), zipped(files), SCHEMA)
    assert str(table.to_pylist()[0]["area"]) == "123456789012.34567"  # more digits than a double has
    assert str(table.to_pylist()[0]["founded"]) == "1923-01-02"
    assert table.schema.equals(SCHEMA)


@pytest.mark.parametrize(
    ("encoding", "cpg"),
    [
        ("latin-1", None),
        ("latin-1", b"ISO 8859-1"),
        ("latin-1", b"88591\r\n"),
        ("cp1252", b"ANSI 1252"),
        ("cp850", b"850"),
        ("utf-8", None),
        ("utf-8", b"65001"),
    ],
)
def test_the_encoding_is_that_of_the_cpg_file_or_found(encoding: str, cpg: bytes | None) -> None:
    files = shapefiles(encoding) | ({} if cpg is None else {"cpg": cpg})
    assert rows(files)[0]["name"] == "Zürich"


def test_the_language_driver_names_an_encoding() -> None:
    files = shapefiles("cp850")
    files["dbf"] = files["dbf"][:29] + b"\x02" + files["dbf"][30:]
    assert rows(files)[0]["name"] == "Zürich"
    with pytest.raises(InvalidInput, match=r"^\.cpg: 'klingon' is not a known encoding"):
        rows(files | {"cpg": b"klingon"})
    with pytest.raises(InvalidInput, match=r"^\.cpg: 'rot13' is not a known encoding"):
        rows(files | {"cpg": b"rot13"})  # known to Python, but not a text encoding


def test_lines_and_points_of_several_parts() -> None:
    line, single = (json.loads(row["geometry"]) for row in rows(shapefiles(type_=shapefile.POLYLINE)))
    assert line == {"type": "MultiLineString", "coordinates": [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]}
    assert single == {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}
    point = json.loads(rows(shapefiles(type_=shapefile.POINTZ))[0]["geometry"])
    assert point["type"] == "Point"
    assert point["coordinates"][:2] == [1, 2]


def test_a_deleted_record_is_left_out_with_its_shape() -> None:
    files = shapefiles(type_=shapefile.POLYLINE)
    start = struct.unpack_from("<H", files["dbf"], 8)[0]
    files["dbf"] = files["dbf"][:start] + b"*" + files["dbf"][start + 1 :]
    (row,) = rows(files)
    assert row["name"] == "Rom"
    assert json.loads(row["geometry"])["type"] == "LineString"


def several() -> bytes:
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for stem in ("a/cities", "a/CITIES2", "__MACOSX/a/._cities"):
            for suffix, content in shapefiles().items():
                file.writestr(f"{stem}.{suffix.upper() if '2' in stem else suffix}", content)
        file.writestr("readme.txt", "hello")
    return archive.getvalue()


def test_a_sub_path_chooses_among_shapefiles() -> None:
    for path in ("a/cities.shp", "*2.SHP", "a/C*"):
        assert read_batch(ReadStepEsriShapefile(sub_path=path), several(), None).num_rows == 2
    for bad, reason in (
        (None, "has 2 shapefiles: a/CITIES2.SHP, a/cities.shp; name one in subPath"),
        ("a/*", "subPath 'a/\\*' has to match one"),
        ("b/*", "matches none of the archive's shapefiles: a/CITIES2.SHP"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            read_batch(ReadStepEsriShapefile(sub_path=bad), several(), None)


def test_every_truncation_is_refused_or_harmless(files: dict[str, bytes]) -> None:
    whole = rows(files)
    for suffix in ("shp", "dbf"):
        for length in range(len(files[suffix])):
            cut = files | {suffix: files[suffix][:length]}
            try:
                assert rows(cut) == whole
            except InvalidInput:
                continue
    archive = zipped(files)
    for length in range(0, len(archive), 7):
        with pytest.raises(InvalidInput, match="is not a readable ZIP archive"):
            read_batch(ReadStepEsriShapefile(), archive[:length], None)


def test_forged_numbers_end_soon_in_records_or_a_refusal(files: dict[str, bytes]) -> None:
    began = time.monotonic()
    for suffix in ("shp", "dbf"):
        for at in range(0, len(files[suffix]) - 4, 4):  # where numbers begin
            for forged in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\xff\xff\xff\xff"):
                raw = files[suffix]
                try:
                    rows(files | {suffix: raw[:at] + forged + raw[at + 4 :]})
                except InvalidInput:
                    continue
    assert time.monotonic() - began < 60


def test_polygons_with_too_many_rings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(esri_shapefile, "MAX_RING_PAIRS", 3)
    with pytest.raises(InvalidInput, match="record 1: polygons with too many rings"):
        rows(shapefiles())


def test_what_decompresses_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(esri_shapefile, "MAX_FILE_BYTES", 1 << 20)
    files = shapefiles()
    bomb = zipped(files | {"dbf": bytes(50 << 20)})
    with pytest.raises(InvalidInput, match=r"cities\.dbf: is larger than 1 MiB uncompressed"):
        read_batch(ReadStepEsriShapefile(), bomb, None)
    claimed = bytearray(bomb)
    for mark, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = bomb.index(mark, bomb.index(b"cities.dbf", bomb.index(mark) + 1) - 60)
        struct.pack_into("<I", claimed, place + at, 100)
    with pytest.raises(InvalidInput, match=r"CRC-32 for file 'cities\.dbf'"):
        read_batch(ReadStepEsriShapefile(), bytes(claimed), None)
    monkeypatch.setattr(esri_shapefile, "MAX_SHAPEFILE_ENTRIES", 2)
    with pytest.raises(InvalidInput, match="has 3 entries; up to 2 are read"):
        read_batch(ReadStepEsriShapefile(), zipped(files), None)


def test_names_that_point_outside_the_archive_write_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for stem in ("../cities", "/cities", "C:\\cities"):
        assert read_batch(ReadStepEsriShapefile(), zipped(shapefiles(), stem), None).num_rows == 2
    assert [one.name for one in tmp_path.rglob("*")] == ["inside"]


def test_archives_inside_archives_are_not_opened() -> None:
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("inner.zip", zipped(shapefiles()))
    with pytest.raises(InvalidInput, match=r"contains no \.shp file; archives inside it are not opened"):
        read_batch(ReadStepEsriShapefile(), archive.getvalue(), None)


@pytest.mark.parametrize("suffix", ["dbf", "shp"])
def test_missing_parts_are_named(suffix: str) -> None:
    files = {name: content for name, content in shapefiles().items() if name != suffix}
    with pytest.raises(InvalidInput, match=r"lacks its \.dbf file|contains no \.shp file"):
        rows(files)


@pytest.mark.parametrize("text", [b"        .0", b"       0.0", b"        -0", b"0         "])
def test_an_attribute_may_have_any_form_of_a_number(text: bytes, files: dict[str, bytes]) -> None:
    files["dbf"] = files["dbf"].replace(b"    421878", text)
    assert rows(files)[0]["people"] == 0


def test_an_attribute_that_does_not_fit_is_named(files: dict[str, bytes]) -> None:
    files["dbf"] = files["dbf"].replace(b"    421878", b"    42l878")
    with pytest.raises(InvalidInput, match=r"^record 1: column people: '42l878' is not a number"):
        rows(files)
    with pytest.raises(InvalidInput, match=r"^record 1: column name: 'Zürich' is not a value of BIGINT"):
        read_batch(ReadStepEsriShapefile(), zipped(shapefiles()), ddl_to_schema(["name BIGINT"]))


def test_a_shape_without_attributes_is_refused(files: dict[str, bytes]) -> None:
    head, size = (int.from_bytes(files["dbf"][at : at + 2], "little") for at in (8, 10))
    one = (1).to_bytes(4, "little")
    files["dbf"] = files["dbf"][:4] + one + files["dbf"][8 : head + size]
    with pytest.raises(InvalidInput, match=r"\.shp file has more records than the \.dbf file"):
        rows(files)


def test_a_part_that_is_in_the_archive_twice_is_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(InvalidInput, match="is in the archive twice"):
        rows(files | {"DBF": files["dbf"]})


@pytest.mark.parametrize(
    ("text", "value"), [("T", True), ("y", True), ("F", False), ("n", False), ("?", None)]
)
def test_a_logical_value_is_one_of_the_letters_of_dbase(text: str, value: bool | None) -> None:
    assert _logical(text) is value
    with pytest.raises(ValueError, match="'x' is not a logical value"):
        _logical("x")


POINT = {"type": "Point", "coordinates": [13.4, 52.5]}
FEATURE_SCHEMA = ddl_to_schema(["name STRING", "people BIGINT", "geometry STRING"])


def feature(name: str, geometry: Any = POINT, **more: Any) -> dict[str, Any]:
    return {"type": "Feature", "id": 7, "properties": {"name": name, **more}, "geometry": geometry}


def collection(*features: object, **more: object) -> bytes:
    return json.dumps({"type": "FeatureCollection", **more, "features": features}).encode()


def test_properties_become_columns_and_so_does_the_geometry(tmp_path: Path) -> None:
    file = tmp_path / "places.geojson"
    file.write_bytes(collection(feature("Berlin", people=3_600_000), feature("Atlantis", None), bbox=[1, 2]))
    rows = read_file(ReadStepGeoJson(), file, FEATURE_SCHEMA).to_pylist()
    assert rows == [
        {"name": "Berlin", "people": 3_600_000, "geometry": '{"type":"Point","coordinates":[13.4,52.5]}'},
        {"name": "Atlantis", "people": None, "geometry": None},
    ]
    assert read_file(ReadStepGeoJson(), file, None).to_pylist() == rows


def test_one_feature_per_line_gives_the_same_records() -> None:
    features = [feature("Berlin", people=1), feature("Rome", {"type": "MultiPoint", "coordinates": [[1, 2]]})]
    lines = b"\n\n".join(json.dumps(one).encode() for one in features) + b"\n"
    expected = read_batch(ReadStepGeoJson(), collection(*features), FEATURE_SCHEMA)
    assert read_batch(ReadStepNdGeoJson(), lines, FEATURE_SCHEMA).equals(expected)
    messages = lines.split()
    messages = [json.dumps(one, indent=1).encode() for one in features]
    for step in (ReadStepGeoJson(), ReadStepNdGeoJson()):
        assert read_records(step, messages, FEATURE_SCHEMA).equals(expected)
        inferred = infer_records(step, [*messages, b"not a feature"], None)
        assert inferred.equals(FEATURE_SCHEMA)
        assert read_inferred(step, messages, inferred).equals(expected)
    assert read_records(ReadStepGeoJson(), [collection(features[0])], FEATURE_SCHEMA).equals(
        expected.slice(0, 1)
    )


def test_coordinates_keep_the_digits_with_which_they_are_written() -> None:
    text = b'{"type":"Feature","properties":null,"geometry":{ "type" : "LineString",\n"coordinates":[[1.50, -0.0],[1e2, 12345678901234567890.12345]]}}'
    table = read_records(ReadStepNdGeoJson(), [text], ddl_to_schema(["geometry STRING"]))
    expected = '{"type":"LineString","coordinates":[[1.50,-0.0],[1e2,12345678901234567890.12345]]}'
    assert table.column("geometry").to_pylist() == [expected]


def test_properties_may_be_nested_and_the_geometry_left_out() -> None:
    schema = ddl_to_schema(["name STRING", "tags ARRAY<STRING>", "pop STRUCT<y2020: INT>"])
    value = collection(feature('a "b"\n', tags=["x", "y"], pop={"y2020": 4}))
    assert read_batch(ReadStepGeoJson(), value, schema).to_pylist() == [
        {"name": 'a "b"\n', "tags": ["x", "y"], "pop": {"y2020": 4}}
    ]


COLLECTION = {"type": "GeometryCollection", "geometries": [POINT, POINT]}


@pytest.mark.parametrize("type_", ["Polygon", "MultiPolygon", "MultiLineString", "GeometryCollection"])
def test_every_type_of_geometry_is_kept_as_geojson(type_: str) -> None:
    geometry = (
        COLLECTION if type_ == "GeometryCollection" else {"type": type_, "coordinates": [[[1, 2], [3, 4]]]}
    )
    table = read_records(ReadStepNdGeoJson(), [json.dumps(feature("a", geometry)).encode()], FEATURE_SCHEMA)
    assert json.loads(table.column("geometry")[0].as_py()) == geometry


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"type": "Point", "coordinates": [1, 2]}, "its type is 'Point' instead of 'Feature'"),
        (
            feature("a", {"type": "Sphere", "coordinates": []}),
            "column geometry: 'Sphere' is not a type of GeoJSON geometries",
        ),
        (
            feature("a", {"type": "Point"}),
            "column geometry: a geometry of type 'Point' needs a list of coordinates",
        ),
        (
            feature("a", {"type": "Point", "coordinates": ["1", 2]}),
            "column geometry: '1' is not a coordinate",
        ),
        (feature("a", {"type": "Point", "coordinates": [float("nan"), 2]}), "NaN is not a coordinate"),
        (
            feature(
                "a", {**COLLECTION, "geometries": [POINT, {**COLLECTION, "geometries": [{"type": "Point"}]}]}
            ),
            "column geometry: a geometry of type 'Point' needs a list of coordinates",
        ),
        (
            feature("a", {"type": "GeometryCollection"}),
            "type 'GeometryCollection' needs a list of geometries",
        ),
        (feature("a", "POINT (1 2)"), r"column geometry: 'POINT \(1 2\)' is not a GeoJSON geometry"),
        (feature("a", geometry=None) | {"properties": [1]}, "its properties are not an object"),
        ({**feature("a"), "properties": {"geometry": 1}}, "a property has the name of the geometry column"),
        (feature("a", people="many"), "column people: 'many' is not a value of BIGINT"),
    ],
)
def test_a_feature_that_does_not_fit_is_named_by_its_place(bad: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^feature 2: .*{reason}"):
        read_batch(ReadStepGeoJson(), collection(feature("b"), bad), FEATURE_SCHEMA)
    lines = f"{json.dumps(feature('b'))}\n\n{json.dumps(bad)}".encode()
    with pytest.raises(InvalidInput, match=rf"^line 3: .*{reason}"):
        read_batch(ReadStepNdGeoJson(), lines, FEATURE_SCHEMA)
    with pytest.raises(InvalidInput, match=reason):
        read_records(ReadStepNdGeoJson(), [json.dumps(bad).encode()], FEATURE_SCHEMA)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"type": "Topology", "objects": {}}', "its type is 'Topology'"),
        (b'{"type": "FeatureCollection"}', "is not a GeoJSON FeatureCollection with features"),
        (b'{"type": "FeatureCollection", "features": [1]}', "expected an array of objects"),
        (b'{"type": "FeatureCollection", "features": [', "expected an array of objects"),
        (b'{"type": "FeatureCollection", "features": []} x', "text after the document"),
        (b'{"features": [], "features": []}', "has 'features' twice"),
        (b'{"type": [' + b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_document_other_than_a_collection_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_batch(ReadStepGeoJson(), text, FEATURE_SCHEMA)


@pytest.mark.parametrize("count", [0, 2])
def test_a_message_with_another_number_of_features_than_one_is_refused(count: int) -> None:
    value = collection(*[feature("Berlin")] * count)
    with pytest.raises(InvalidInput, match=f"has {count} features instead of one"):
        read_records(ReadStepGeoJson(), [value], FEATURE_SCHEMA)


def test_a_geometry_keeps_its_other_members_as_they_are_written() -> None:
    text = json.dumps(feature("a", {**POINT, "süd": "Köln"}), ensure_ascii=False).encode()
    table = read_records(ReadStepNdGeoJson(), [text], FEATURE_SCHEMA)
    assert table.column("geometry").to_pylist() == ['{"type":"Point","coordinates":[13.4,52.5],"süd":"Köln"}']


def test_half_a_surrogate_pair_is_refused() -> None:
    text = json.dumps(feature("a", {**POINT, "note": "\ud800"})).encode()
    with pytest.raises(InvalidInput, match="half a surrogate pair"):
        read_records(ReadStepNdGeoJson(), [text], FEATURE_SCHEMA)


def test_deep_nesting_is_refused() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    for place in (b'"geometry":{"type":"Point","coordinates":%s},"properties":{}', b'"properties":{"a":%s}'):
        with pytest.raises(InvalidInput, match="recursion depth"):
            read_records(ReadStepNdGeoJson(), [b'{"type":"Feature",' + place % deep + b"}"], FEATURE_SCHEMA)


def test_an_empty_collection_has_no_records() -> None:
    assert read_batch(ReadStepGeoJson(), collection(), FEATURE_SCHEMA).equals(FEATURE_SCHEMA.empty_table())
    assert read_batch(ReadStepGeoJson(), collection(), None).schema == pa.schema([])
