"""Errors of transforms."""

from dataclasses import dataclass

from odf_common.errors import Conflict


@dataclass(eq=False, kw_only=True)
class InputDiverged(Conflict):
    """A derivative has read a block that its input no longer has."""

    dataset: str
    input: str
    block: str

    def __str__(self) -> str:
        """Return the derivative, and the missing block of which input."""
        return (
            f"{self.dataset} has read block {self.block} of {self.input}, which is no longer in its chain: "
            f"{self.input} was reset, or has diverged"
        )

    def advice(self) -> str:
        """Return how to roll back."""
        return (
            f"`odf pull --reset-derivatives {self.dataset}` rolls {self.dataset} back to the last consistent block, "
            "and recomputes it from there"
        )
