"""Text that is safe to show in a terminal: control characters and invisible characters are escaped.

Names, descriptions and records come from other parties. Control characters move the cursor, bidirectional characters
reorder the text next to them, and invisible characters make different names look the same. All of these are escaped,
even where they have a legitimate use, as in sequences of emoji. Letters of all scripts are shown, including those that
are written from right to left. Variation selectors of symbols (U+FE00–FE0F) are shown, because they only change the
look of the character before them.
"""

import json
import re
from typing import Final

# Categories Cc, Cf, Cs, Zl and Zp of Unicode, and what fonts leave blank although it is of another category.
_HIDDEN: Final = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IN_LINES: Final = re.compile(f"[{_HIDDEN}]")
_IN_LINE: Final = re.compile(f"[\t\n{_HIDDEN}]")
END_OF_LINE: Final = "↵"


def is_visible(text: str) -> bool:
    """Return whether `visible` would leave the text as it is."""
    return _IN_LINES.search(text) is None


def visible(text: str) -> str:
    r"""Return lines with hidden characters escaped as `\xad`, `\u202e` or `\U000e0001`, but for tabs and ends of lines.

    YAML reads these escapes in double quotes.
    """
    return _IN_LINES.sub(lambda match: _escape(match[0]), text)


def visible_line(text: str) -> str:
    """Return text as a single line: tabs are escaped as well, and a line end becomes `↵`."""
    return _IN_LINE.sub(lambda match: END_OF_LINE if match[0] == "\n" else _escape(match[0]), text)


def visible_json(text: str) -> str:
    r"""Return JSON with hidden characters of its strings escaped as `\u202e`; its values are the same."""
    return _IN_LINES.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
