"""Manifests as people write them."""

import json
import sys
import unicodedata
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.profiles import examples

from odf_common.codec.manifests import (
    block_from_text,
    event_from_text,
    from_plain,
    repository_from_text,
    repository_to_yaml,
    snapshots_from_text,
    sourced_snapshots,
    to_plain,
    to_yaml,
)
from odf_common.codec.visible_text import is_visible, visible, visible_json, visible_line
from odf_common.codec.yaml_syntax import documents, scalar_of, write
from odf_common.errors import InvalidInput
from odf_common.metadata import data_schema as sc
from odf_common.metadata import events as ev
from odf_common.metadata import fetching
from odf_common.metadata.events import Repository
from odf_common.metadata.scalars import ExtraAttributes

SNAPSHOT = """\
kind: DatasetSnapshot
version: 1
content:
  name: my.dataset
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson
        schema:
          - city STRING
          - population BIGINT
      merge:
        kind: Ledger
        primaryKey: [city]
    - kind: SetVocab
      eventTimeColumn: date
"""


def snapshots(text: str) -> tuple[Any, ...]:
    return snapshots_from_text(text.encode(), "my.yaml")


def test_snapshot_is_read() -> None:
    (snapshot,) = snapshots(SNAPSHOT)
    assert snapshot.name == "my.dataset"
    assert snapshot.kind is ev.DatasetKind.Root
    assert snapshot.metadata == (
        ev.AddPushSource(
            source_name="default",
            read=ev.ReadStepNdJson(ddl_schema=("city STRING", "population BIGINT")),
            merge=ev.MergeStrategyLedger(primary_key=("city",)),
        ),
        ev.SetVocab(event_time_column="date"),
    )


def test_several_documents_are_several_snapshots_and_empty_ones_are_none() -> None:
    found = snapshots(f"---\n{SNAPSHOT}---\n# nothing\n---\n{SNAPSHOT.replace('my.dataset', 'other')}")
    assert [snapshot.name for snapshot in found] == ["my.dataset", "other"]


@pytest.mark.parametrize("tag", ["NdJson", "ndJson", "ndjson"])
def test_tags_are_read_in_three_spellings(tag: str) -> None:
    assert snapshots(SNAPSHOT.replace("NdJson", tag)) == snapshots(SNAPSHOT)


@pytest.mark.parametrize("tag", ["nDjson", "NDJSON", "nd_json", "ReadStepNdJson"])
def test_tags_in_other_spellings_are_refused(tag: str) -> None:
    with pytest.raises(InvalidInput, match="unknown kind"):
        snapshots(SNAPSHOT.replace("NdJson", tag))


@pytest.mark.parametrize("kind", ["root", "Root"])
def test_enums_are_read_in_the_same_spellings(kind: str) -> None:
    assert snapshots(SNAPSHOT.replace("Root", kind))[0].kind is ev.DatasetKind.Root


@pytest.mark.parametrize("name", ["UInt8", "uInt8", "uint8"])
def test_unsigned_types_are_read_in_the_same_spellings(name: str) -> None:
    assert from_plain(sc.DataField, {"name": "a", "type": name}) == sc.DataField(
        name="a", type=sc.DataTypeUInt8()
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("schema", ["a INT"], ev.ReadStepCsv(ddl_schema=("a INT",))),
        ("ddlSchema", ["a INT"], ev.ReadStepCsv(ddl_schema=("a INT",))),
        (
            "schema",
            {"fields": [{"name": "a", "type": {"kind": "Int32"}}]},
            ev.ReadStepCsv(schema=sc.DataSchema(fields=(sc.DataField(name="a", type=sc.DataTypeInt32()),))),
        ),
    ],
)
def test_schema_of_a_read_step_is_ddl_or_an_odf_schema(key: str, value: Any, expected: Any) -> None:
    assert from_plain(ev.ReadStepCsv, {"kind": "Csv", key: value}) == expected


def test_ddl_given_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="another name"):
        from_plain(ev.ReadStepCsv, {"kind": "Csv", "schema": ["a INT"], "ddlSchema": ["a INT"]})


@pytest.mark.parametrize("key", ["schema", "rawArrowSchema"])
def test_arrow_schema_is_base64(key: str) -> None:
    event = from_plain(ev.SetDataSchema, {"kind": "SetDataSchema", key: "AAECAw=="})
    assert event == ev.SetDataSchema(raw_arrow_schema=b"\0\1\2\3")
    assert to_plain(event) == {"kind": "SetDataSchema", "rawArrowSchema": "AAECAw=="}


@pytest.mark.parametrize("text", ["AAECAw", "AAE!CAw==", "AAEC Aw==", "AAEC\nAw=="])
def test_what_is_not_base64_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidInput, match="rawArrowSchema: expected base64"):
        from_plain(ev.SetDataSchema, {"kind": "SetDataSchema", "rawArrowSchema": text})


def test_union_members_without_fields_may_be_a_bare_tag() -> None:
    plain = {"kind": "Url", "url": "http://x", "eventTime": "fromMetadata", "cache": "Forever"}
    step = from_plain(fetching.FetchStepUrl, plain)
    assert step.event_time == fetching.EventTimeSourceFromMetadata()
    assert step.cache == fetching.SourceCachingForever()


def test_extra_attributes_are_a_map_with_sorted_keys_inside() -> None:
    extra = from_plain(ExtraAttributes, {"b": {"z": 1, "a": "ü"}, "a": None})
    assert extra == ExtraAttributes('{"a":null,"b":{"a":"ü","z":1}}')
    plain = to_plain(ev.AddData(extra=extra))
    assert plain == {"kind": "AddData", "extra": {"a": None, "b": {"a": "ü", "z": 1}}}


def test_unknown_key_is_named_with_place_path_and_nearest_known_key() -> None:
    with pytest.raises(InvalidInput) as caught:
        snapshots(SNAPSHOT.replace("primaryKey", "primryKey"))
    expected = "my.yaml:16:9: content.metadata[0].merge.primryKey: unknown key 'primryKey'; did you mean 'primaryKey'?"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("name: my.dataset\n  ", "", "my.yaml:3:1: content: 'name' is missing"),
        (
            "name: my.dataset",
            "name: 12",
            "my.yaml:4:3: content.name: expected a string, got 12; put it in quotes",
        ),
        (
            "kind: Root",
            "kind: Tree",
            "content.kind: unknown DatasetKind 'Tree'; expected one of Root, Derivative",
        ),
        ("version: 1", "version: 2", "my.yaml:2:1: version: version 2 is not supported; expected 1"),
        (
            "DatasetSnapshot",
            "Repository",
            "my.yaml:1:1: kind: expected kind DatasetSnapshot, got 'Repository'",
        ),
        ("kind: NdJson", "kind: NdJson\n        dateForm: x", "read.dateForm: unknown key 'dateForm'"),
        ("content:", "more: 1\ncontent:", "my.yaml:3:1: more: unknown key 'more'"),
        ("[city]", "city", 'content.metadata[0].merge.primaryKey: expected a list, got "city"'),
        ("kind: SetVocab", "name: x", "content.metadata[1]: 'kind' is missing; expected one of AddData"),
        ("- city STRING", "- {a: 1}", "content.metadata[0].read.schema[0]: expected a string, got a mapping"),
        ("- city STRING", "- [a]", "content.metadata[0].read.schema[0]: expected a string, got a list"),
        ("default", "&a default", "my.yaml:8:19: anchors and aliases are not allowed"),
        ("default", "*a", "my.yaml:8:19: anchors and aliases are not allowed"),
        ("default", "!!str default", "my.yaml:8:19: tag 'tag:yaml.org,2002:str' is not allowed"),
        ("  kind: Root", "  kind: Root\n  kind: Root", "my.yaml:6:3: key 'kind' is given twice"),
        ("content:", "content: [", "my.yaml:"),
    ],
)
def test_faults_are_named_with_their_place(old: str, new: str, complaint: str) -> None:
    assert old in SNAPSHOT
    with pytest.raises(InvalidInput) as caught:
        snapshots(SNAPSHOT.replace(old, new, 1))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "it has no document"),
        (b"\xff", "not UTF-8"),
        (b"just text", "expected a DatasetSnapshot manifest"),
        (b'{"kind": "x", "kind": "y"}', "key 'kind' is given twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"[" * 5000 + b"]" * 5000, "nested deeper"),
        (b"[" * 400 + b"]" * 400, "nested deeper"),
        (b"- " * 500 + b"a", "nested deeper"),
        (b"? [a]\n: b", "a key has to be a plain string"),
        (b"a: 'x\n", "file:2:1"),
    ],
)
def test_broken_text_is_refused(text: bytes, complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        snapshots_from_text(text, "file")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        ("true", True),
        ("null", None),
        ("-12", -12),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1e999", "1e999"),
        (".inf", ".inf"),
        ("9" * 50, float("9" * 50)),
    ],
)
def test_plain_scalars_are_only_what_json_has(text: str, expected: Any) -> None:
    assert scalar_of(text) == expected
    assert type(scalar_of(text)) is type(expected)


def test_strings_that_other_parsers_would_read_as_other_types_are_quoted() -> None:
    written = to_yaml(ev.SetInfo(description="yes", keywords=("2020-01-01", "1e3", "null", "a")))
    assert written == "kind: SetInfo\ndescription: 'yes'\nkeywords:\n- '2020-01-01'\n- '1e3'\n- 'null'\n- a\n"


def test_letters_of_all_languages_are_written_as_they_are() -> None:
    assert to_yaml(ev.SetInfo(description="Zürich 東京")) == "kind: SetInfo\ndescription: Zürich 東京\n"


@pytest.mark.parametrize("text", ["a\x85b", "a\u2028b", "a\tb"])
def test_other_line_separators_and_tabs_are_escaped(text: str) -> None:
    event = ev.SetInfo(description=text)
    written = to_yaml(event)
    assert written.isascii()
    assert event_from_text(written.encode(), "file") == event


def test_lines_are_shown_as_lines() -> None:
    assert "description: |-\n  one\n  two\n" in to_yaml(ev.SetInfo(description="one\ntwo"))


@pytest.mark.parametrize("value", [-1, 1 << 64, 1.5, True, "1"])
def test_offset_is_an_integer_of_64_bits(value: Any) -> None:
    with pytest.raises(InvalidInput, match="start"):
        from_plain(ev.OffsetInterval, {"start": value, "end": 0})


def test_an_event_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected AddData, got DisablePollingSource"):
        from_plain(ev.AddData, {"kind": "DisablePollingSource"})


def test_null_is_absent() -> None:
    plain = {"kind": "AddData", "newWatermark": None, "prevOffset": 7}
    assert from_plain(ev.AddData, plain) == ev.AddData(prev_offset=7)
    with pytest.raises(InvalidInput, match="expected a string, got nothing"):
        from_plain(ev.DisablePushSource, {"kind": "DisablePushSource", "sourceName": None})


@pytest.mark.parametrize("time", ["2020-01-01T12:00:00", "2020-13-01T00:00:00Z", "yesterday"])
def test_time_without_offset_or_sense_is_refused(time: str) -> None:
    with pytest.raises(InvalidInput, match="newWatermark"):
        from_plain(ev.AddData, {"kind": "AddData", "newWatermark": time})


def test_event_is_read_with_and_without_manifest() -> None:
    event = ev.SetVocab(event_time_column="date")
    content = to_yaml(event)
    assert event_from_text(content.encode(), "f") == event
    indented = "".join(f"  {line}\n" for line in content.splitlines())
    assert event_from_text(f"kind: MetadataEvent\nversion: 1\ncontent:\n{indented}".encode(), "f") == event


@pytest.mark.parametrize(
    ("text", "count"), [("", "no document"), ("kind: SetInfo\n---\nkind: SetInfo", "one document, got 2")]
)
def test_an_event_is_one_document(text: str, count: str) -> None:
    with pytest.raises(InvalidInput, match=count):
        event_from_text(text.encode(), "f")


def test_a_repository_is_read_from_its_manifest_and_from_no_other() -> None:
    repository = Repository(url="https://example.com/datasets")
    text = repository_to_yaml(repository)
    assert repository_from_text(text.encode(), "f") == repository
    with pytest.raises(InvalidInput, match="expected kind Repository"):
        repository_from_text(text.replace("kind: Repository", "kind: DatasetSnapshot").encode(), "f")


def test_block_manifest_of_unknown_version_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"expected 2 or 3"):
        block_from_text(b"{kind: MetadataBlock, version: 4, content: {}}", "f")


def test_json_with_tabs_and_escaped_surrogates_is_read() -> None:
    (document,) = documents(b'{\n\t"a":\t"\\ud83d\\ude80"}', "f")
    assert document.value == {"a": "🚀"}


def test_half_a_surrogate_pair_is_not_a_string() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        event_from_text(b'{"kind": "SetInfo", "description": "\\ud83d"}', "f")


@pytest.mark.parametrize("text", ['{"kind": "x",\n "kind": "y"}', "kind: x\nkind: y"])
def test_a_repeated_key_is_found_in_json_as_in_yaml(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^my\.yaml:2:\d: key 'kind' is given twice"):
        snapshots(text)


def test_a_fault_in_json_has_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"^my\.json:2:2: version: version 2 is not supported"):
        snapshots_from_text(b'{"kind": "DatasetSnapshot",\n "version": 2, "content": {}}', "my.json")


def test_a_snapshot_has_the_places_of_its_parts() -> None:
    text = """
kind: DatasetSnapshot
version: 1
content:
  name: a
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: [a INT,
                                    b INT]}
      merge: {kind: Append}
"""
    (written,) = sourced_snapshots(text.encode(), "a.yaml")

    assert written.location("content.name") == "a.yaml:5:3"
    assert written.location("content.metadata[0].read.ddlSchema[1]") == "a.yaml:11:37"
    assert written.location("content.metadata[0].preprocess") == "a.yaml:8:7"


KEPT = "\t\n"
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
BLANK = "\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\uffa0\U000e0100\U000e0fff"


def test_every_control_and_format_character_of_unicode_is_hidden() -> None:
    hidden = [one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(one) in UNSEEN]
    assert {"\x1b", "\xad", "\u061c", "\u200d", "\u202e", "\u2069", "\ufeff", "\U000e0041"} <= {*hidden}
    assert [one for one in hidden if is_visible(one) and one not in KEPT] == []


@pytest.mark.parametrize("text", BLANK)
def test_characters_that_fonts_leave_blank_are_hidden(text: str) -> None:
    assert not is_visible(text)
    assert visible(text).isascii()


@pytest.mark.parametrize(
    "text", ["Zürich", "القاهرة", "תל אביב", "北京", "ประเทศไทย", "नमस्ते", "☀️", "👩🏽", "ö", "a\tb\nc"]
)
def test_letters_of_all_scripts_are_shown(text: str) -> None:
    assert visible(text) == text


def test_text_from_right_to_left_keeps_its_letters_but_not_its_marks() -> None:
    assert visible("\u200fالقاهرة\u202e") == "\\u200fالقاهرة\\u202e"
    assert visible("👩\u200d🚀") == "👩\\u200d🚀"
    assert visible("\x1b[31m\xad\U000e0041\ud800\r") == "\\x1b[31m\\xad\\U000e0041\\ud800\\r"


def test_one_line_has_no_tabs_and_shows_where_lines_end() -> None:
    assert visible_line("a\tb\nc\u2066") == "a\\tb↵c\\u2066"


TEXTS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\u202e\u200b\U000e0041\"'\\: #\n\t" + BLANK)
)


@settings(max_examples=examples(300))
@given(st.dictionaries(TEXTS, st.lists(TEXTS, max_size=2), max_size=2))
def test_json_and_yaml_have_the_same_values_and_show_all_characters(value: dict[str, list[str]]) -> None:
    as_json, as_yaml = visible_json(json.dumps(value, ensure_ascii=False)), write(value)
    assert is_visible(as_json)
    assert is_visible(as_yaml)
    assert json.loads(as_json) == value
    assert yaml.safe_load(as_yaml) == value
    assert documents(as_yaml.encode(), "a")[0].value == value
