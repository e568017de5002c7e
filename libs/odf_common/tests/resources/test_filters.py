from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import InvalidInput
from odf_common.resources.filters import (
    Filter,
    FilterKey,
    ValueIn,
    holds,
    parse_filter,
    required_keys,
    required_values,
)
from odf_common.resources.labels import json_equal

LABELS = {
    "env": "prod",
    "tier": 1,
    "on": True,
    "owner": {"team": "a"},
    "zones": ["x"],
    "name": "Rivers.Hourly",
}


def parse(value: object) -> Filter:
    return parse_filter(value, lambda key: FilterKey(key, is_name=key == "name"))


def has(filter: object, labels: dict[str, Any] = LABELS) -> bool:
    def values(key: str) -> tuple[object, ...]:
        return (labels[key].lower() if key == "name" else labels[key],) if key in labels else ()

    return holds(parse(filter), values)


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({}, True),
        ({"env": "prod"}, True),
        ({"env": "prod", "tier": 1}, True),
        ({"env": "prod", "tier": 2}, False),
        ({"env": "PROD"}, False),
        ({"tier": "1"}, False),
        ({"tier": 1.0}, True),
        ({"on": 1}, False),
        ({"on": True}, True),
        ({"owner": {"team": "a"}}, True),
        ({"owner": {"team": "b"}}, False),
        ({"owner": {}}, False),
        ({"zones": ["x"]}, True),
        ({"absent": "x"}, False),
        ({"absent": None}, False),
        ({"$not": {"absent": "x"}}, True),
        ({"$not": {"env": "prod"}}, False),
        ({"$not": {}}, False),
        ({"env": {"$in": ["dev", "prod"]}}, True),
        ({"env": {"$in": []}}, False),
        ({"tier": {"$in": ["1"]}}, False),
        ({"env": {"$like": "p%d"}}, True),
        ({"env": {"$like": "P%"}}, False),
        ({"env": {"$like": "prod"}}, True),
        ({"env": {"$like": "pro_"}}, False),
        ({"tier": {"$like": "%"}}, False),
        ({"absent": {"$like": "%"}}, False),
        ({"env": {"$exists": True}}, True),
        ({"env": {"$exists": False}}, False),
        ({"absent": {"$exists": False}}, True),
        ({"$or": [{"env": "dev"}, {"tier": 1}]}, True),
        ({"$or": [{"env": "dev"}, {"tier": 2}]}, False),
        ({"$or": []}, False),
        ({"$and": []}, True),
        ({"$and": [{"env": "prod"}, {"tier": 2}]}, False),
        ({"$and": [{"env": "prod"}, {"$not": {"tier": 2}}]}, True),
        ({"name": "RIVERS.hourly"}, True),
        ({"name": {"$in": ["x", "Rivers.HOURLY"]}}, True),
        ({"name": {"$like": "rivers.%"}}, True),
        ({"name": {"$like": "%.daily"}}, False),
    ],
)  # fmt: skip
def test_filter_holds(filter: object, expected: bool) -> None:
    assert has(filter) is expected


@pytest.mark.parametrize(
    ("filter", "problem"),
    [
        ({"$nor": []}, r"\$nor: unknown operator"),
        ({"env": {"$gt": 1}}, r"env: expected a value or"),
        ({"env": {"$in": 1}}, r"env: expected a value or"),
        ({"env": {"$like": 1}}, r"env: expected a value or"),
        ({"env": {"$exists": 1}}, r"env: expected a value or"),
        ({"env": {"$like": "a", "$exists": True}}, r"several are joined by \$and"),
        ({"env": {"$not": "a"}}, r"env: expected a value or"),
        ({"$or": {"env": "a"}}, r"\$or: expected a list of filters"),
        ({"$and": "a"}, r"\$and: expected a list of filters"),
        ({"$not": "a"}, r"\$not: expected an object"),
        ({"$or": [{"a": 1}, 5]}, r"\$or\[1\]: expected an object"),
        ("env=prod", "expected an object of keys and values"),
        ([], "expected an object of keys and values"),
        ({"name": 5}, "name: expected a name"),
        ({"name": {"$like": "a_b"}}, "name: 'a_b'"),
        ({"name": {"$like": "a/b"}}, "name: 'a/b' has an account"),
    ],
)  # fmt: skip
def test_filter_of_another_form_is_refused_with_its_place(filter: object, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse(filter)


def test_filter_is_at_most_8_levels_deep() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return {"$not": nested(depth - 1)} if depth > 1 else {"env": "prod"}

    assert has(nested(7))
    assert not has(nested(8))
    with pytest.raises(InvalidInput, match="more than 8 levels"):
        parse(nested(9))
    with pytest.raises(InvalidInput, match="more than 8 levels"):
        parse(nested(2000 // 4))


def test_filter_has_at_most_64_entries() -> None:
    assert not has({f"k{number}": 1 for number in range(64)})
    with pytest.raises(InvalidInput, match="more than 64 entries"):
        parse({f"k{number}": 1 for number in range(65)})
    with pytest.raises(InvalidInput, match="more than 64 entries"):
        parse({"env": {"$in": list(range(64))}})
    with pytest.raises(InvalidInput, match="more than 64 entries"):
        parse({"$or": [{"a": 1}] * 64})


def test_equalities_that_must_hold_are_those_joined_by_and() -> None:
    found = parse(
        {
            "a": 1,
            "b": {"$in": [1, 2]},
            "$not": {"c": 1},
            "$or": [{"d": 1}, {"e": 1}],
            "$and": [{"f": 1}, {"$or": [{"g": 1}]}],
        }
    )
    assert required_values(found) == (
        ValueIn("a", (1,)),
        ValueIn("b", (1, 2)),
        ValueIn("f", (1,)),
        ValueIn("g", (1,)),
    )


def test_keys_that_must_exist() -> None:
    found = parse(
        {
            "a": {"$like": "x%"},
            "b": {"$exists": True},
            "c": {"$exists": False},
            "$not": {"d": 1},
            "$or": [{"e": 1, "f": 1}, {"e": 2}],
        }
    )
    assert required_keys(found) == {"a", "b", "e"}
    assert required_keys(parse({"$or": []})) == frozenset()


SCALARS = some.sampled_from([0, 1, True, False, "1", "x", None])
KEYS = some.sampled_from(["a", "b", "c"])
CONDITIONS = SCALARS | some.one_of(
    some.fixed_dictionaries({"$in": some.lists(SCALARS, max_size=2)}),
    some.fixed_dictionaries({"$exists": some.booleans()}),
    some.fixed_dictionaries({"$like": some.sampled_from(["%", "x", "1%"])}),
)
FILTERS: some.SearchStrategy[dict[str, Any]] = some.recursive(
    some.dictionaries(KEYS, CONDITIONS, max_size=2),
    lambda inner: some.fixed_dictionaries(
        {},
        optional={
            "a": CONDITIONS,
            "$not": inner,
            "$or": some.lists(inner, max_size=2),
            "$and": some.lists(inner, max_size=2),
        },
    ),
    max_leaves=6,
)


@given(FILTERS, some.dictionaries(KEYS, SCALARS))
def test_what_an_index_needs_holds_for_everything_that_matches(
    filter: dict[str, Any], labels: dict[str, Any]
) -> None:
    found = parse(filter)
    if holds(found, lambda key: (labels[key],) if key in labels else ()):
        assert required_keys(found) <= labels.keys()
        for one in required_values(found):
            assert any(json_equal(labels[one.key], value) for value in one.values)


@given(FILTERS, some.dictionaries(KEYS, SCALARS))
def test_not_is_the_opposite(filter: dict[str, Any], labels: dict[str, Any]) -> None:
    assert has({"$not": filter}, labels) is not has(filter, labels)
