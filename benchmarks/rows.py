"""A measured value, compared with its limit or peer, and whether it reaches its target."""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Judged = Literal["ratio", "value"]
Sense = Literal["≥", "≤"]
Plain = Mapping[str, object]

_HOLDS: Final = {"≥": operator.ge, "≤": operator.le}
_SENSES: Final[Mapping[str, Sense]] = {">=": "≥", "≥": "≥", "<=": "≤", "≤": "≤"}
_TARGET: Final = re.compile(r"(?P<judged>ratio|value)?\s*(?P<sense>>=|<=|≥|≤)\s*(?P<bound>[0-9.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target: `judged` (of a row) is at least, or at most, `bound`."""

    judged: Judged
    sense: Sense
    bound: float

    def __str__(self) -> str:
        """Return it as text: `value ≤ 9`."""
        return f"{self.judged} {self.sense} {self.bound:,g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number; `peer` names what it is compared with, `against` is the peer's number, in the same unit.

    `ratio` is better when larger for rates, and when smaller for times and costs. `detail` has the parts of
    a value, in its unit.
    """

    case: str
    value: float
    unit: str
    peer: str = ""
    against: float | None = None
    ratio: float | None = None
    target: Target | None = None
    detail: Mapping[str, float] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """Return whether the target is reached, None without a target."""
        if self.target is None:
            return None
        judged = self.ratio if self.target.judged == "ratio" else self.value
        return judged is not None and bool(_HOLDS[self.target.sense](judged, self.target.bound))

    def plain(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "case": self.case,
            "value": _rounded(self.value),
            "unit": self.unit,
            "peer": self.peer or None,
            "limit_or_peer": None if self.against is None else _rounded(self.against),
            "ratio": None if self.ratio is None else _rounded(self.ratio),
            "target": None if self.target is None else str(self.target),
            "reached": self.reached,
            **({"detail": dict(self.detail)} if self.detail else {}),
        }


def held_against(
    case: str,
    value: float,
    unit: str,
    *,
    peer: tuple[str, float],
    target: Target | None = None,
    detail: Mapping[str, float] | None = None,
) -> Row:
    """Return a row with the ratio of a value to its peer's."""
    name, against = peer
    return Row(
        case=case,
        value=value,
        unit=unit,
        peer=name,
        against=against,
        ratio=value / against if against else None,
        target=target,
        detail=detail or {},
    )


def row_of(plain: Plain) -> Row:
    """Return a row of a case that gives its numbers as a mapping.

    Its target is a bound of the ratio, or text: `>= 6000` bounds the value, `ratio >= 0.8` the ratio.
    """
    unit = str(plain["unit"])
    value = _number(plain["value"])
    assert value is not None, "every row has a value"
    return Row(
        case=str(plain["case"]),
        value=value,
        unit=unit,
        peer=str(plain.get("peer") or ""),
        against=_number(plain.get("limit_or_peer")),
        ratio=_number(plain.get("ratio")),
        target=_target(plain.get("target"), unit),
    )


def _target(target: object, unit: str) -> Target | None:
    if isinstance(target, int | float):
        return Target(judged="ratio", sense="≥" if is_rate(unit) else "≤", bound=target)
    match = _TARGET.match(str(target or ""))
    if match is None:
        return None
    judged: Judged = "ratio" if match["judged"] == "ratio" else "value"
    return Target(judged=judged, sense=_SENSES[match["sense"]], bound=float(match["bound"]))


def is_rate(unit: str) -> bool:
    """Return whether more is better."""
    return unit.endswith("/s")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)
