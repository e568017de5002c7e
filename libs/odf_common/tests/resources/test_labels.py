import pytest

from odf_common.errors import InvalidInput
from odf_common.resources.labels import (
    check_annotations,
    check_labels,
    json_equal,
    label_key,
    labels_by_key,
    merge_labels,
)
from odf_common.resources.scalar_formats import TypeRef, TypeUri

KIND = TypeUri(context="dataset", name="DatasetKind")
ENV = TypeUri(base="https://example.com/schemas", context="ops", version="v1", name="Env")
KNOWN: dict[str, TypeUri] = {"DatasetKind": KIND, "env": ENV}


def lookup(type: TypeRef) -> TypeUri | None:
    return KNOWN.get(type) if isinstance(type, str) else type if type in KNOWN.values() else None


@pytest.mark.parametrize("text", ["datasetKind", "DatasetKind", str(KIND)])
def test_short_key_and_uri_are_one_label_looked_up_as_given_then_with_a_capital(text: str) -> None:
    assert label_key(text, lookup) == "https://opendatafabric.org/schemas/dataset/DatasetKind"


def test_short_name_as_given_goes_before_the_one_with_a_capital() -> None:
    both = {**KNOWN, "Env": KIND}
    assert label_key("env", lambda key: both.get(str(key))) == str(ENV.identity)


def test_unknown_short_key_is_allowed_and_stays() -> None:
    assert label_key("team", lookup) == "team"
    assert check_labels({"team": {"nested": ["data", 1]}}, lookup) == ()


def test_unknown_uri_gives_a_warning() -> None:
    (warning,) = check_labels({"https://example.com/ops/v1/Team": "a", str(KIND): "Root"}, lookup)
    assert warning.startswith("https://example.com/ops/v1/Team is the URI of no type")


@pytest.mark.parametrize("key", ["my_key", "a/b", "a.b", "", "https://example.com/team", "http://a/b/v1/C"])
def test_key_outside_the_grammar_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput):
        check_labels({key: 1}, lookup)
    with pytest.raises(InvalidInput):
        check_annotations({key: 1}, lookup)


def test_both_spellings_in_one_map_are_refused() -> None:
    with pytest.raises(InvalidInput, match="is the same key as datasetKind"):
        labels_by_key({"datasetKind": "Root", str(KIND): "Root"}, lookup)


def test_null_value_is_refused() -> None:
    with pytest.raises(InvalidInput, match="null is no value"):
        check_labels({"team": None}, lookup)


def test_limits_are_64_keys_and_4_kib_of_a_label() -> None:
    assert check_labels({f"k{number}": 1 for number in range(64)}, lookup) == ()
    assert check_labels({"k": "x" * 4094}, lookup) == ()
    with pytest.raises(InvalidInput, match="65 labels; up to 64"):
        check_labels({f"k{number}": 1 for number in range(65)}, lookup)
    with pytest.raises(InvalidInput, match="k: the value is longer than 4096 bytes"):
        check_labels({"k": "x" * 4095}, lookup)


def test_limit_of_annotations_is_256_kib() -> None:
    check_annotations({f"k{number}": "x" * 4000 for number in range(65)}, lookup)
    with pytest.raises(InvalidInput, match="annotations are longer"):
        check_annotations({"k": "x" * 256 * 1024}, lookup)


def test_system_label_is_added_and_the_same_value_of_a_user_is_no_conflict() -> None:
    merged = merge_labels({"team": "a", "datasetKind": "Root"}, {str(KIND): "Root"}, lookup)
    assert merged == {"team": "a", str(KIND.identity): "Root"}


def test_system_label_with_another_value_of_a_user_is_an_error() -> None:
    with pytest.raises(InvalidInput, match='is set by the node to "Root"'):
        merge_labels({"datasetKind": "Derivative"}, {str(KIND): "Root"}, lookup)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (1, 1.0, True),
        ("1", 1, False),
        (True, 1, False),
        (False, 0, False),
        (True, True, True),
        (None, None, True),
        (None, False, False),
        ({"a": 1, "b": [2]}, {"b": [2.0], "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": 1}, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ([], {}, False),
        ("a", "A", False),
    ],
)  # fmt: skip
def test_equality_is_that_of_json(left: object, right: object, expected: bool) -> None:
    assert json_equal(left, right) is expected
    assert json_equal(right, left) is expected
