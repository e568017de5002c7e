"""The controller of Source resources: checks that a source can be read with the values that it names (RFC-018)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from odf_common.errors import InvalidInput, NotFound
from odf_common.metadata.events import SetPollingSource
from odf_common.metadata.fetching import (
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepFilesGlob,
    FetchStepUrl,
    PrepStepPipe,
)
from odf_common.resources import specs
from odf_common.resources.failures import DependencyMissing
from odf_common.resources.references import Handle
from odf_common.resources.secret_keys import SecretKeys
from odf_ingest.poll.polled_source import PolledSource
from odf_ingest.sources.source_resource import (
    PushIngress,
    ReadSet,
    config_value,
    polled_source,
    polling_definition,
    push_definition,
    push_ingress,
    source_spec,
    template_names,
    topic_settings,
)

Json = dict[str, Any]
ReadResource = Callable[..., Json]
"""Takes the type and the id of a resource, and as `account` the handle of who uses it; returns its document."""
NODE_ACCOUNT: Final = "odf"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceController:
    """Makes sources ready to be read; values are read again at each poll."""

    read: ReadResource
    keys: Callable[[], SecretKeys]
    is_multi_tenant: bool
    count_accepted: Callable[[str], int] = lambda _: 0
    """Returns the number of accepted records of a source, by its id, that are not committed."""
    end: Callable[[Json], None] = lambda _: None
    """Called with a source that is deleted; raises an error while it may not be."""

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        """Check a source; raises `DependencyMissing` for a set that is missing, `InvalidInput` for other faults."""
        spec = source_spec(resource)
        ingress = push_ingress(spec)
        if not isinstance(ingress, specs.IngressRestEndpoint):
            self._require_committed(resource)
        if ingress is not None:
            push_definition(resource)
            self._require_pushable(ingress, resource["headers"]["account"]["name"])
            return {}
        definition = polling_definition(spec)
        config = resource["spec"].get("config", {})
        undeclared = sorted(template_names(spec) - config.keys())
        if undeclared:
            text = f"config.{undeclared[0]} is not declared; add it to `config`"
            raise InvalidInput(where="spec.config", text=text)
        account = resource["headers"]["account"]
        self._require_allowed(definition, account["name"])
        for name, plain in config.items():
            handle = Handle.from_plain(plain)
            config_value(handle, self._reader(account), self.keys, f"spec.config.{name}")
        return {}

    def finalize(self, resource: Json) -> None:
        """Drop the buffer of a source, unless it holds records. Positions stay in the chains of datasets."""
        self.end(resource)

    def _require_committed(self, resource: Json) -> None:
        """Raise `InvalidInput` if an ingress that took pushes was replaced before all were committed."""
        waiting = self.count_accepted(resource["headers"]["id"])
        if waiting:
            text = f"{waiting} records were accepted before and are not committed; run a flow with RestEndpoint first"
            raise InvalidInput(where="spec.ingress", text=text)

    def _require_pushable(self, ingress: PushIngress, account: str) -> None:
        """Raise `InvalidInput` for topics that cannot be read, or not by this account."""
        if isinstance(ingress, specs.IngressKafkaTopic):
            topic_settings(ingress)
            if self.is_multi_tenant and account != NODE_ACCOUNT:
                text = f"topics belong to the node's cluster; only sources of the account {NODE_ACCOUNT} read them"
                raise InvalidInput(where="spec.ingress", text=text)

    def polled_source(self, resource: Json) -> PolledSource:
        """Return a source with the values that its sets have now; raises as `reconcile`."""
        account = resource["headers"]["account"]
        self._require_allowed(polling_definition(source_spec(resource)), account["name"])
        return polled_source(resource, self._reader(account), self.keys)

    def _reader(self, account: Json) -> ReadSet:
        def read(handle: Handle) -> Json:
            kind = handle.type.name
            if handle.id is None:
                raise DependencyMissing(text=f"{kind} {handle.name} does not exist")
            try:
                return self.read(str(handle.type), handle.id, account=account)
            except NotFound as error:
                text = f"{kind} {handle.name} ({handle.id}) does not exist any more"
                raise DependencyMissing(text=text) from error

        return read

    def _require_allowed(self, definition: SetPollingSource, account: str) -> None:
        """Raise `InvalidInput` for a source that needs what this node, or this account, does not have."""
        step = definition.fetch
        if isinstance(step, FetchStepEthereumLogs):
            raise InvalidInput(
                where="spec.ingress", text="unsupported: this node asks no node of an EVM chain"
            )
        runs = [type(one).__name__ for one in definition.prepare or () if isinstance(one, PrepStepPipe)]
        is_file = isinstance(step, FetchStepUrl) and urlsplit(step.url).scheme.lower() == "file"
        if is_file or isinstance(step, FetchStepFilesGlob | FetchStepContainer):
            runs.append(type(step).__name__)
        if runs and self.is_multi_tenant and account != NODE_ACCOUNT:
            what = runs[0].removeprefix("FetchStep").removeprefix("PrepStep")
            text = f"{what} uses the node's machine, which only sources of the account {NODE_ACCOUNT} may"
            raise InvalidInput(where="spec", text=text)
