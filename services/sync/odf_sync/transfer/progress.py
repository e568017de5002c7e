"""The steps that a pull or a push reports while it runs; the last one states its outcome."""

from dataclasses import dataclass

from odf_common.hashing.multihash import Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The progress of a copy: comparing, blocks, replacing, objects, committing, updated, restored, up-to-date."""

    alias: str
    state: str
    done: int = 0
    total: int = 0
    head: Multihash | None = None
    new_blocks: int = 0
    new_records: int = 0
    replaced: Multihash | None = None
    """The head of a chain that is replaced by one that does not contain it: before that, and of the last step."""
    missing_objects: int = 0
    """Of a derivative: neither the repository nor this node has them, so they are to be rebuilt from the inputs.

    Of a push: those that were not sent, since they were dropped here.
    """
    missing_inputs: tuple[str, ...] = ()
    """Inputs that have to be pulled before that: ids, with the names that the query gives them."""
    is_private: bool = False
    """The dataset is private here from now on, since it may be so there, or comes from what is private here.

    Push, in the first step: the dataset is private on this node, and all readers of the target can read it there.
    """
    target: str = ""
    """Of a push: where it went, as the user named it."""
