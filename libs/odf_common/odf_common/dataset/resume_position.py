"""The position at which a stopped source resumes: `earliest`, `latest`, `keep`, an offset, or an offset per partition.

The command checks the syntax before it connects; the service that reads the source checks it against the topic.
"""

import re
from typing import Final

from odf_common.errors import InvalidInput

OFFSET: Final = r"[0-9]{1,18}"
PARTITION_OFFSETS: Final = rf"[0-9]{{1,9}}:{OFFSET}(,[0-9]{{1,9}}:{OFFSET})*"


def checked_position(text: str) -> str:
    """Return the position if its syntax is valid, whatever the topic; raises `InvalidInput`."""
    if re.fullmatch(f"earliest|latest|keep|{OFFSET}|{PARTITION_OFFSETS}", text) is None:
        expected = "earliest, latest, keep or an offset, such as 1200 or 0:1200,1:1200"
        raise InvalidInput(where="--from", text=f"expected {expected}, got {text!r}")
    return text
