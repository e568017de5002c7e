"""Definitions of Source resources (RFC-018): polled sources with the values of their templates, and push sources."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final

from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    AddPushSource,
    MergeStrategyAppend,
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
    SetPollingSource,
)
from odf_common.metadata.fetching import (
    FetchStep,
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
)
from odf_common.resources import specs
from odf_common.resources.conversion import CHAIN_NAME
from odf_common.resources.references import Handle
from odf_common.resources.registry import SECRET_SET, SOURCE
from odf_common.resources.secret_encryption import SecretPlace, decrypt_at_rest
from odf_common.resources.secret_keys import SecretKeys
from odf_common.resources.templates import IN_SOURCE, Template, TemplateValue, config_values, value_at_path
from odf_ingest.merge.strategies import takes_whole_batches
from odf_ingest.poll.polled_source import PolledSource
from odf_ingest.poll.templates import Secrets, map_texts
from odf_ingest.source_settings import SourceSettings

Json = Mapping[str, Any]
"""The annotation with the name by which a chain knows the source."""
# The fetch step of each kind of ingress that is polled.
_FETCH_STEPS: Final[Mapping[type, type]] = {
    specs.IngressUrl: FetchStepUrl,
    specs.IngressFilesGlob: FetchStepFilesGlob,
    specs.IngressContainer: FetchStepContainer,
    specs.IngressMqtt: FetchStepMqtt,
    specs.IngressEvmLogs: FetchStepEthereumLogs,
}
ReadSet = Callable[[Handle], Json]
"""Returns the canonical document of a set that a source may use; raises `NotFound`."""


class SourceNotPolled(InvalidInput):
    """The source takes what is sent to it, so there is nothing to fetch."""


class SourceNotPushed(InvalidInput):
    """The source is polled, so nothing can be sent to it."""


PushIngress = specs.IngressRestEndpoint | specs.IngressKafkaTopic
_ENCODED: Final = (ReadStepCsv, ReadStepJson, ReadStepNdJson)
SETTINGS: Final[Mapping[str, str]] = {
    "topics": "topics",
    "start": "topicStart",
    "key_columns": "keyColumns",
    "key_format": "keyFormat",
    "header_columns": "headerColumns",
    "timestamp_column": "timestampColumn",
    "message_format": "messageFormat",
    "envelope": "envelope",
    "registry": "schemaRegistry",
    "bad_records": "badRecords",
    "finer_times": "finerTimes",
    "retractions": "retractions",
    "watermark_delay": "watermarkDelay",
    "max_future": "maxFuture",
    "idle_timeout": "idleTimeout",
}
"""Settings of topics (`odf source set`) by the field of a resource that has them."""


def source_spec(document: Json) -> specs.SourceSpec:
    """Return the spec of a source; raises `InvalidInput` with the path of its first error."""
    problems: list[InvalidInput] = []
    spec: specs.SourceSpec | None = SOURCE.read_spec(document["spec"], problems)
    if spec is None:
        raise problems[0]
    return spec


def polling_definition(spec: specs.SourceSpec) -> SetPollingSource:
    """Return the definition of a polled source; raises `SourceNotPolled`."""
    ingress = spec.ingress
    step = _FETCH_STEPS.get(type(ingress))
    if step is None:
        kind = "no ingress" if ingress is None else type(ingress).__name__.removeprefix("Ingress")
        raise SourceNotPolled(where="spec.ingress", text=f"a source with {kind} is not polled")
    fetch: FetchStep = step(**{field.name: getattr(ingress, field.name) for field in fields(step)})
    return SetPollingSource(
        fetch=fetch,
        prepare=spec.prepare,
        read=spec.read,
        preprocess=spec.preprocess,
        merge=spec.merge or MergeStrategyAppend(),
    )


def push_ingress(spec: specs.SourceSpec) -> PushIngress | None:
    """Return the ingress that brings a source messages; None: it is polled."""
    if spec.ingress is None:
        return specs.IngressRestEndpoint()
    return spec.ingress if isinstance(spec.ingress, PushIngress) else None


def push_definition(document: Json) -> AddPushSource:
    """Return the definition of a source whose messages are one record each, unless its merge takes whole batches.

    Raises `SourceNotPushed`.
    """
    spec = source_spec(document)
    ingress = push_ingress(spec)
    if ingress is None:
        kind = type(spec.ingress).__name__.removeprefix("Ingress")
        raise SourceNotPushed(
            where="spec.ingress", text=f"a source with {kind} is polled; nothing is pushed to it"
        )
    if spec.prepare:
        raise InvalidInput(where="spec.prepare", text="messages have no prepare steps; remove them")
    return AddPushSource(
        source_name=chain_name(document),
        # Pushes are decoded when they are accepted.
        read=decoded(spec.read) if isinstance(ingress, specs.IngressRestEndpoint) else spec.read,
        preprocess=spec.preprocess,
        merge=spec.merge or MergeStrategyAppend(),
    )


def decoded(read: ReadStep) -> ReadStep:
    """Return the step that reads the same records in UTF-8."""
    return replace(read, encoding=None) if isinstance(read, _ENCODED) else read


def has_whole_batches(definition: AddPushSource) -> bool:
    """Return whether each push is one message, since its records belong together or its format has a frame."""
    is_file = isinstance(definition.read, ReadStepParquet | ReadStepEsriShapefile)
    return is_file or takes_whole_batches(definition.merge)


def topic_settings(ingress: specs.IngressKafkaTopic) -> SourceSettings:
    """Return the settings of a source that reads topics; raises `InvalidInput` with the field."""
    if not ingress.topics:
        raise InvalidInput(where="spec.ingress.topics", text="expected the names of topics, or a pattern")
    plain = {}
    for name, key in SETTINGS.items():
        value = getattr(ingress, name)
        if value is not None:
            plain[key] = _setting_text(value)
    try:
        return SourceSettings.from_plain(plain)
    except InvalidInput as error:
        raise error.with_facts(where=f"spec.ingress ({error.where})") from error


def _setting_text(value: object) -> str:
    """Return a value as the setting has it: names are separated by commas."""
    if isinstance(value, Mapping):
        return ",".join(f"{header}:{column}" for header, column in value.items())
    return ",".join(value) if isinstance(value, tuple) else str(value)


def chain_name(document: Json) -> str:
    """Return the name by which chains know a source: its id, which no rename changes, unless an annotation has one."""
    headers = document["headers"]
    return str(headers["annotations"].get(CHAIN_NAME) or headers["id"])


def template_names(spec: specs.SourceSpec) -> frozenset[str]:
    """Return the names in `config` that templates use; raises `InvalidInput` for a template that cannot be read."""
    names: set[str] = set()

    def note(text: str) -> str:
        names.update(name.removeprefix("config.") for name in Template.parse(text, IN_SOURCE).names)
        return text

    try:
        map_texts(polling_definition(spec).fetch, note)
    except InvalidInput as error:
        raise error.with_facts(where=error.where or "spec.ingress") from error
    return frozenset(names)


def polled_source(document: Json, read_set: ReadSet, keys: Callable[[], SecretKeys]) -> PolledSource:
    """Return a source that is ready to be polled, with the values that its sets have now."""
    spec = source_spec(document)
    config = {
        name: config_value(Handle.from_plain(plain), read_set, keys, f"spec.config.{name}")
        for name, plain in document["spec"].get("config", {}).items()
        if name in template_names(spec)
    }
    return PolledSource(
        definition=polling_definition(spec),
        name=chain_name(document),
        is_in_chain=False,
        fill=partial(_fill, config),
    )


def config_value(
    handle: Handle, read_set: ReadSet, keys: Callable[[], SecretKeys], where: str
) -> TemplateValue:
    """Return a value of a set; raises `InvalidInput` naming `where` if the set has none at the path.

    The keys are loaded after the set was read, so they have the one that it was encrypted by.
    """
    document = read_set(handle)
    is_secret = document["$schema"] == str(SECRET_SET.uri)
    assert handle.path is not None
    try:
        text = value_at_path(_values(document, keys, is_secret=is_secret), handle.path)
    except InvalidInput as error:
        kind = document["$schema"].rpartition("/")[2]
        name = document["headers"]["name"]
        raise InvalidInput(where=where, text=f"{kind}:{name}#{handle.path}: {error.text}") from None
    return TemplateValue(text, is_secret=is_secret)


def _values(document: Json, keys: Callable[[], SecretKeys], *, is_secret: bool) -> dict[str, str]:
    spec, headers = document["spec"], document["headers"]
    if not is_secret:
        return {
            name: value if isinstance(value, str) else value["value"]
            for name, value in spec["variables"].items()
        }
    loaded = keys()
    return {
        name: decrypt_at_rest(
            secret["value"],
            SecretPlace(
                account=headers["account"]["name"], resource=headers["id"], path=f"spec.secrets.{name}"
            ),
            loaded,
        )
        for name, secret in spec["secrets"].items()
    }


def _fill(config: Mapping[str, TemplateValue], step: FetchStep) -> tuple[FetchStep, Secrets]:
    """Return a fetch step with its templates filled in, and the secrets among the values."""
    secrets: set[str] = set()

    def fill(text: str) -> str:
        filled = Template.parse(text, IN_SOURCE).fill(config_values(config))
        secrets.update(filled.secrets)
        return filled.text

    try:
        filled: FetchStep = map_texts(step, fill)
    except InvalidInput as error:
        raise error.with_facts(where="spec.ingress") from error
    return filled, Secrets(frozenset(secrets))
