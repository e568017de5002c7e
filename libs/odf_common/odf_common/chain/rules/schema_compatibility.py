"""Rules of SetDataSchema: which schema may follow which (wire-facts §5.5, 22)."""

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SetDataSchema
from odf_common.metadata.manifest_contents import MetadataBlock


def schema_is_given(past: ChainState, block: MetadataBlock) -> str | None:
    """SetDataSchema holds a schema, as Arrow bytes or in ODF's own form (spec: SetDataSchema)."""
    event = block.event
    if isinstance(event, SetDataSchema) and event.raw_arrow_schema is None and event.schema is None:
        return "the event has no schema"
    return None


def schema_changes_something(past: ChainState, block: MetadataBlock) -> str | None:
    """SetDataSchema is not repeated unchanged (§5.5, 22)."""
    if isinstance(block.event, SetDataSchema) and block.event == past.definitions.schema:
        return "the schema is set already"
    return None


def schema_stays_compatible(past: ChainState, block: MetadataBlock) -> str | None:
    """A new schema may add optional columns and reorder; all else would change old data (§5.5, 22)."""
    event, current = block.event, past.definitions.schema
    if not isinstance(event, SetDataSchema) or current is None:
        return None
    # Imported here: Arrow takes long to load, and few chains change their schema.
    from odf_common.data.schema_evolution import check_evolution, schema_of_event, with_optionality_of  # noqa: PLC0415

    try:
        old, new = schema_of_event(current), schema_of_event(event)
        if event.schema is not None and current.schema is None:
            # Arrow schemas of old chains are unreliable about optionality, so moving to ODF's form may restate it.
            old = with_optionality_of(old, new)
        check_evolution(old, new)
    except InvalidInput as error:
        return str(error)
    return None
