"""Missing data: data dropped on purpose is not damage, and a copy can fetch lost data again.

Missing objects are compared with the node's own marker of what it dropped.
"""

from collections.abc import Iterable
from dataclasses import replace

from odf_common.adapters.local.keys import has_dataset_key
from odf_common.dataset.object_markers import dropped_blocks
from odf_common.identity.branch_names import split_ref
from odf_common.metadata.events import ExecuteTransform
from odf_common.ports.store import BlobStore, ObjectKind
from odf_common.service.environment import Environment
from odf_verifier.report import Damage, Problem
from odf_verifier.targets import Target


def without_dropped(blobs: BlobStore, target: Target, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems, with a single one for all dropped objects."""
    found = list(problems)
    if not target.is_local or all(one.kind is not Damage.OBJECT_MISSING for one in found):
        return found  # the notes in a foreign folder are not trusted
    line = dropped_blocks(blobs, target.dataset)
    if line is None:
        return found
    rest = [
        one
        for one in found
        if one.kind is not Damage.OBJECT_MISSING or one.block is None or not line.contains(one.block)
    ]
    if len(rest) == len(found):
        return found
    text = f"its data was dropped; `odf pull {split_ref(target.name)[0]}` recomputes it"
    return [*rest, Problem(kind=Damage.DATA_DROPPED, text=text)]


def with_advice(env: Environment, target: Target, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems; the first lost object of a copy gets advice on how to fetch all again."""
    found = list(problems)
    if not target.is_local or has_dataset_key(env.settings.home / "keys", target.dataset):
        return found
    name = split_ref(target.name)[0]
    for place, one in enumerate(found):
        if one.kind is Damage.OBJECT_MISSING:
            text = (
                f"{one.text}; {name} is a copy: `odf pull URL --as {name} --recheck` fetches lost files again"
            )
            found[place] = replace(one, text=text)
            break
    return found


def dropped_input(env: Environment, event: ExecuteTransform) -> str | None:
    """Return the name of an input whose data for this transform was dropped; None if there is none."""
    for step in event.query_inputs:
        entry = env.catalog.by_id(step.dataset_id)
        block = step.new_block_hash
        if entry is None or block is None or not env.blobs.has(step.dataset_id, ObjectKind.BLOCK, block):
            continue
        line = dropped_blocks(env.blobs, step.dataset_id)
        if line is not None and line.contains(block):
            return entry.alias
    return None
