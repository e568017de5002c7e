import json
import sys
import unicodedata

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.profiles import examples

from odf_common.codec.visible_text import is_visible, visible, visible_json, visible_line
from odf_common.codec.yaml_syntax import documents, write

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
