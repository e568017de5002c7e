"""The guide's table of what may arrive has each event once, and says of none that anything may if the code refuses it."""

import re
from pathlib import Path

from odf_common.chain.arrivals import OWNED, anything
from odf_common.metadata.events import DisablePollingSource, DisablePushSource, Seed, UnknownEvent

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "access.md"
# By a rule of the chain, and by the check after the last block.
ELSEWHERE = (Seed, DisablePollingSource, DisablePushSource)


def test_the_guide_prints_the_table() -> None:
    section = GUIDE.read_text("utf-8").split("## What a push may bring\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    rows = {name: cells[1] for cells in lines for name in re.findall(r"`(\w+)`", cells[0])}
    unknown = next(cells[1] for cells in lines if "does not know" in cells[0])
    assert rows.keys() == {kind.__name__ for kind in OWNED} - {UnknownEvent.__name__}
    is_any = {kind: rows.get(kind.__name__, unknown) == "any" for kind in OWNED}
    assert is_any == {kind: row is anything and kind not in ELSEWHERE for kind, row in OWNED.items()}
