import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import InvalidInput
from odf_common.resources.templates import (
    IN_PAYLOAD,
    IN_SOURCE,
    FilledText,
    Template,
    TemplateScope,
    TemplateValue,
    config_values,
    fill_strings,
    names_in_strings,
    payload_values,
    require_one_line,
    value_at_path,
)

CONFIG = config_values(
    {
        "token": TemplateValue("s3cret", is_secret=True),
        "from": TemplateValue("2020"),
        "a-b_c": TemplateValue("x"),
        "empty": TemplateValue(""),
        "tricky": TemplateValue("${{ config.token }}"),
    }
)
EVENT = {"type": "dataset.ref.updated", "ref": {"oldHash": None, "interval": {"start": 0, "end": 9}}}
PAYLOAD = payload_values(
    {
        "trigger": {"event": EVENT, "dataset": None},
        "target": {"name": "rivers", "n": [1, {"a": True}]},
        "run": 5,
    }
)


def fill(text: str) -> FilledText:
    return Template.parse(text, IN_SOURCE).fill(CONFIG)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("no template, $ {{ }} ${", "no template, $ {{ }} ${"),
        ("from=${{ config.from }}&to", "from=2020&to"),
        ("${{config.from}}${{   config.a-b_c\t}}", "2020x"),
        ("${{ config.none || config.from }}", "2020"),
        ("${{ config.none || 'text' }}", "text"),
        ("${{ config.none || 'a || b }} c' }}!", "a || b }} c!"),
        ("${{ config.none || 10 }}", "10"),
        ("${{ -1.5 }}", "-1.5"),
        ("${{ '' }}", ""),
        ("${{ config.empty || 'default' }}", ""),
        ("${{ 'first' || config.from }}", "first"),
        ("${{ config.none\n|| 'x' }}", "x"),
    ],
)
def test_first_term_that_has_a_value_wins(text: str, filled: str) -> None:
    assert fill(text) == FilledText(filled)


@pytest.mark.parametrize(
    "text",
    [
        "${{",
        "${{ }}",
        "${{ config.from",
        "${{ config.from }",
        "${{ config.from || }}",
        "${{ || 'a' }}",
        "${{ config.from | 'a' }}",
        "${{ config.from 'a' }}",
        "${{ 'a }}",
        '${{ "a" }}',
        "${{ f(config.from) }}",
        "ok ${{ config.from }} then ${{ ?",
    ],
)
def test_template_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot read the template"):
        Template.parse(text, IN_SOURCE)


@pytest.mark.parametrize(
    "name", ["config", "config.", "config.a.b", "config.1a", "secrets.a", "target.name", "Config.a"]
)
def test_sources_have_only_config(name: str) -> None:
    with pytest.raises(
        InvalidInput, match=re.escape("is not available in templates here; expected config.NAME")
    ):
        Template.parse(f"${{{{ {name} }}}}", IN_SOURCE)


@pytest.mark.parametrize(
    ("scope", "hint"),
    [(IN_SOURCE, r"add TOKEN to `config`, and write config\.TOKEN"), (IN_PAYLOAD, r"use trigger\.event, ")],
)
def test_environment_is_an_error_with_the_hint_to_use_config(scope: TemplateScope, hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint):
        Template.parse("${{ env.TOKEN || 'x' }}", scope)


def test_repr_shows_no_value() -> None:
    assert "s3cret" not in repr(fill("${{ config.token }}")) + repr(TemplateValue("s3cret", is_secret=True))


def test_no_value_at_all_is_an_error_that_names_what_was_tried() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"there is no value of config\.a or config\.b; add it to `config`, or give a default",
    ):
        fill("${{ config.a || config.b }}")


def test_inserted_text_is_never_a_template() -> None:
    assert fill("${{ config.tricky }}") == FilledText("${{ config.token }}")
    assert fill("${{ '${{ config.token }}' }}") == FilledText("${{ config.token }}")


def test_result_says_whether_a_secret_went_in() -> None:
    assert fill("Bearer ${{ config.token }}") == FilledText("Bearer s3cret", frozenset({"s3cret"}))
    assert fill("Bearer ${{ config.token }}").is_secret
    assert not fill("${{ config.from || config.token }}").is_secret
    assert not fill("${{ config.tricky }}").is_secret


def test_names_are_those_of_all_terms() -> None:
    template = Template.parse("${{ config.a || config.b || 'c' }} ${{ 1 }}", IN_SOURCE)
    assert template.names == {"config.a", "config.b"}


def test_every_string_of_a_json_value_is_filled_in_but_no_key() -> None:
    value = {
        "url": "h/${{ config.from }}",
        "port": 5,
        "${{ config.from }}": [{"value": "${{ config.token }}"}, None, True],
    }
    filled, secrets = fill_strings(value, IN_SOURCE, CONFIG)
    assert filled == {"url": "h/2020", "port": 5, "${{ config.from }}": [{"value": "s3cret"}, None, True]}
    assert secrets == {"s3cret"}


def test_names_in_a_json_value_and_the_place_of_an_error() -> None:
    value = {"url": "h/${{ config.a }}", "headers": [{"value": "${{ config.b || 'x' }}"}], "${{ ?": 5}
    assert names_in_strings(value, IN_SOURCE) == {"config.a", "config.b"}
    with pytest.raises(InvalidInput, match=r"^headers\[0\]\.value: env\.TOKEN is not available"):
        names_in_strings({"headers": [{"value": "${{ env.TOKEN }}"}]}, IN_SOURCE)
    with pytest.raises(InvalidInput, match=r"^url: there is no value of config\.none"):
        fill_strings({"url": "${{ config.none }}"}, IN_SOURCE, CONFIG)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${{ trigger.event }}", json.dumps(EVENT, separators=(",", ":"))),
        ('{"e": ${{ trigger.event.ref.interval }}}', '{"e": {"start":0,"end":9}}'),
        ("${{ trigger.event.type }}", "dataset.ref.updated"),
        ("${{ trigger.event.ref.oldHash || 'none' }}", "none"),
        ("${{ trigger.dataset || 'none' }}", "none"),
        ("${{ trigger.dataset.name || 'none' }}", "none"),
        ("${{ target.name }} ${{ run }} ${{ target.n.1.a }} ${{ target.n }}", 'rivers 5 true [1,{"a":true}]'),
        ("${{ target.n.2 || flow || 'none' }}", "none"),
    ],
)
def test_payload_has_the_roots_of_a_flow_and_prints_objects_as_json(text: str, filled: str) -> None:
    assert Template.parse(text, IN_PAYLOAD).fill(PAYLOAD) == FilledText(filled)


@pytest.mark.parametrize(
    "name", ["config.a", "trigger", "trigger.source", "targets", "event", "target..name"]
)
def test_payload_has_no_other_roots(name: str) -> None:
    with pytest.raises(
        InvalidInput, match=re.escape("expected trigger.event, trigger.dataset, target, flow or run")
    ):
        Template.parse(f"${{{{ {name} }}}}", IN_PAYLOAD)


@pytest.mark.parametrize("text", ["a\nb", "a\r", "\0"])
def test_header_with_a_line_break_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"headers\.X-Key: the value of a header has a line break"
    ) as caught:
        require_one_line(FilledText(text), "headers.X-Key")
    assert text not in str(caught.value)
    assert require_one_line(FilledText("a b"), "headers.X-Key") == "a b"


VALUES = {
    "api.token": "t",
    "api": '{"token": "other", "port": 80, "on": true, "n": null, "l": [{"a": 1.5}], "ü": "ü", "big": 12345678901234567890}',
    "plain": "text",
    "a.b": '{"c": {"d": "deep"}}',
    "a": '{"b": {"c": {"d": "shallow"}}}',
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("plain", "text"),
        ("api.token", "t"),
        ("api.port", "80"),
        ("api.on", "true"),
        ("api.big", "12345678901234567890"),
        ("api.l", '[{"a":1.5}]'),
        ("api.l.0.a", "1.5"),
        ("api.ü", "ü"),
        ("a.b.c.d", "deep"),
        ("a.b.c", '{"d":"deep"}'),
    ],
)
def test_path_is_the_longest_key_and_the_rest_walks_into_json(path: str, expected: str) -> None:
    assert value_at_path(VALUES, path) == expected


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("none", "the set has no such key"),
        ("", "the set has no such key"),
        ("plain.x", "the value of plain is not JSON"),
        ("api.none", "the value of api has nothing there"),
        ("api.n", "the value of api has nothing there"),
        ("api.l.1", "the value of api has nothing there"),
        ("api.l.x", "the value of api has nothing there"),
        ("api.token.x", "the value of api.token is not JSON"),
        ("a.b.x", "the value of a.b has nothing there"),
    ],
)
def test_path_that_leads_nowhere_is_an_error_without_values(path: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        value_at_path(VALUES, path)
    assert not {"text", "other", "deep"} & set(str(caught.value).split())
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("text", ["NaN", "[" * 100_000, '{"a": 1'])
def test_path_into_damaged_json_is_an_error(text: str) -> None:
    with pytest.raises(InvalidInput, match="the value of k is not JSON"):
        value_at_path({"k": text}, "k.a")


@given(some.text(), some.text())
def test_any_value_is_inserted_as_it_is(before: str, value: str) -> None:
    text = before.replace("$", "")
    filled = Template.parse(text + "${{ config.v }}" + text, IN_SOURCE).fill(
        config_values({"v": TemplateValue(value)})
    )
    assert filled.text == text + value + text


@given(some.text(alphabet="${}|'. config1a\n"))
def test_no_string_does_more_than_be_refused(text: str) -> None:
    try:
        filled = Template.parse(text, IN_SOURCE).fill(lambda name: TemplateValue("v"))
    except InvalidInput:
        assert "${{" in text
    else:
        assert filled.text == text or "${{" in text
