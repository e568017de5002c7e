import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepGeoJson, ReadStepNdGeoJson
from odf_ingest.read import infer_records, read_batch, read_file, read_inferred, read_records

POINT = {"type": "Point", "coordinates": [13.4, 52.5]}
SCHEMA = ddl_to_schema(["name STRING", "people BIGINT", "geometry STRING"])


def feature(name: str, geometry: Any = POINT, **more: Any) -> dict[str, Any]:
    return {"type": "Feature", "id": 7, "properties": {"name": name, **more}, "geometry": geometry}


def collection(*features: object, **more: object) -> bytes:
    return json.dumps({"type": "FeatureCollection", **more, "features": features}).encode()


def test_properties_become_columns_and_so_does_the_geometry(tmp_path: Path) -> None:
    file = tmp_path / "places.geojson"
    file.write_bytes(collection(feature("Berlin", people=3_600_000), feature("Atlantis", None), bbox=[1, 2]))
    rows = read_file(ReadStepGeoJson(), file, SCHEMA).to_pylist()
    assert rows == [
        {"name": "Berlin", "people": 3_600_000, "geometry": '{"type":"Point","coordinates":[13.4,52.5]}'},
        {"name": "Atlantis", "people": None, "geometry": None},
    ]
    assert read_file(ReadStepGeoJson(), file, None).to_pylist() == rows


def test_one_feature_per_line_gives_the_same_records() -> None:
    features = [feature("Berlin", people=1), feature("Rome", {"type": "MultiPoint", "coordinates": [[1, 2]]})]
    lines = b"\n\n".join(json.dumps(one).encode() for one in features) + b"\n"
    expected = read_batch(ReadStepGeoJson(), collection(*features), SCHEMA)
    assert read_batch(ReadStepNdGeoJson(), lines, SCHEMA).equals(expected)
    messages = lines.split()
    messages = [json.dumps(one, indent=1).encode() for one in features]
    for step in (ReadStepGeoJson(), ReadStepNdGeoJson()):
        assert read_records(step, messages, SCHEMA).equals(expected)
        inferred = infer_records(step, [*messages, b"not a feature"], None)
        assert inferred.equals(SCHEMA)
        assert read_inferred(step, messages, inferred).equals(expected)
    assert read_records(ReadStepGeoJson(), [collection(features[0])], SCHEMA).equals(expected.slice(0, 1))


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
    table = read_records(ReadStepNdGeoJson(), [json.dumps(feature("a", geometry)).encode()], SCHEMA)
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
        read_batch(ReadStepGeoJson(), collection(feature("b"), bad), SCHEMA)
    lines = f"{json.dumps(feature('b'))}\n\n{json.dumps(bad)}".encode()
    with pytest.raises(InvalidInput, match=rf"^line 3: .*{reason}"):
        read_batch(ReadStepNdGeoJson(), lines, SCHEMA)
    with pytest.raises(InvalidInput, match=reason):
        read_records(ReadStepNdGeoJson(), [json.dumps(bad).encode()], SCHEMA)


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
        read_batch(ReadStepGeoJson(), text, SCHEMA)


@pytest.mark.parametrize("count", [0, 2])
def test_a_message_with_another_number_of_features_than_one_is_refused(count: int) -> None:
    value = collection(*[feature("Berlin")] * count)
    with pytest.raises(InvalidInput, match=f"has {count} features instead of one"):
        read_records(ReadStepGeoJson(), [value], SCHEMA)


def test_a_geometry_keeps_its_other_members_as_they_are_written() -> None:
    text = json.dumps(feature("a", {**POINT, "süd": "Köln"}), ensure_ascii=False).encode()
    table = read_records(ReadStepNdGeoJson(), [text], SCHEMA)
    assert table.column("geometry").to_pylist() == ['{"type":"Point","coordinates":[13.4,52.5],"süd":"Köln"}']


def test_half_a_surrogate_pair_is_refused() -> None:
    text = json.dumps(feature("a", {**POINT, "note": "\ud800"})).encode()
    with pytest.raises(InvalidInput, match="half a surrogate pair"):
        read_records(ReadStepNdGeoJson(), [text], SCHEMA)


def test_deep_nesting_is_refused() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    for place in (b'"geometry":{"type":"Point","coordinates":%s},"properties":{}', b'"properties":{"a":%s}'):
        with pytest.raises(InvalidInput, match="recursion depth"):
            read_records(ReadStepNdGeoJson(), [b'{"type":"Feature",' + place % deep + b"}"], SCHEMA)


def test_an_empty_collection_has_no_records() -> None:
    assert read_batch(ReadStepGeoJson(), collection(), SCHEMA).equals(SCHEMA.empty_table())
    assert read_batch(ReadStepGeoJson(), collection(), None).schema == pa.schema([])
