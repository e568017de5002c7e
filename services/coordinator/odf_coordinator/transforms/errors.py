"""Why a transform cannot run."""

from dataclasses import dataclass

from odf_common.errors import Conflict


@dataclass(eq=False, kw_only=True)
class InputDiverged(Conflict):
    """A derivative has read a block that its input no longer has."""

    dataset: str
    input: str
    block: str

    def __str__(self) -> str:
        """Return which derivative stands still, for which block of which input, and what to do."""
        return (
            f"{self.dataset} has read block {self.block} of {self.input}, which is no longer in its chain: "
            f"{self.input} was reset, or went on in another way; `odf pull --reset-derivatives {self.dataset}` "
            f"takes {self.dataset} back to where both agree, and derives it again from there"
        )
