"""Source resources: what is polled, the values in its templates, and what a node refuses."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from odf_common.errors import InvalidInput, NotFound
from odf_common.metadata.events import MergeStrategyAppend
from odf_common.metadata.fetching import FetchStepUrl
from odf_common.resources.failures import DependencyMissing
from odf_common.resources.secret_encryption import SecretPlace, encrypt_at_rest
from odf_common.resources.secret_keys import SecretKeys
from odf_common.resources.specs import IngressKafkaTopic
from odf_ingest.sources.source_controller import SourceController
from odf_ingest.sources.source_resource import source_spec, topic_settings

KEYS = SecretKeys.new()
SCHEMAS = "https://opendatafabric.org/schemas"
IDS = {
    "SecretSet": "0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10",
    "VariableSet": "6f6e2c1e-77d1-4a0c-8e57-0d6c1f3b9a21",
}
ACCOUNT = {
    "id": "6f6e2c1e-77d1-4a0c-8e57-0d6c1f3b9a22",
    "did": "did:odf:fed01af426e5ae25bd4661d94d363394c33376411b24e752a7f6c92394e764947d2c6",
    "name": "ann",
}
JWE = encrypt_at_rest(
    "swordfish",
    SecretPlace(account="ann", resource=IDS["SecretSet"], path="spec.secrets.Tok.en"),
    KEYS,
)
SETS: Mapping[str, dict[str, Any]] = {
    "SecretSet": {"secrets": {"Tok.en": {"value": JWE, "contentEncoding": "jwe"}}},
    "VariableSet": {"variables": {"from": "2020-01-01", "db": {"value": '{"port": 5113}'}}},
}
URL: Mapping[str, Any] = {
    "kind": "Url",
    "url": "https://example.org/${{ config.day || '2000-01-01' }}.csv",
    "headers": [{"name": "Authorization", "value": "Bearer ${{ config.token }}"}],
}


TOPICS: Mapping[str, Any] = {
    "kind": "Ext",
    "$schema": "https://node.odf.example/schemas/source/v1alpha1/KafkaTopic",
    "topics": ["shop.*"],
}


def handle(kind: str, path: str) -> dict[str, Any]:
    uri = f"{SCHEMAS}/config/v1alpha1/{kind}"
    return {"type": uri, "id": IDS[kind], "name": kind.lower(), "account": ACCOUNT, "path": path}


def a_set(schema: str, id: str, *, account: dict[str, str]) -> dict[str, Any]:
    kind = schema.rpartition("/")[2]
    assert (id, account) == (IDS[kind], ACCOUNT)
    return {
        "$schema": schema,
        "headers": {"id": id, "name": kind.lower(), "account": ACCOUNT},
        "spec": SETS[kind],
    }


def a_source(ingress: Mapping[str, Any] = URL, **spec: Any) -> dict[str, Any]:
    config = {"token": handle("SecretSet", "Tok.en"), "day": handle("VariableSet", "from")}
    fields = {"config": config, "ingress": dict(ingress), "read": {"kind": "Csv"}, **spec}
    headers = {
        "id": "2b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10",
        "name": "Rates",
        "account": ACCOUNT,
        "annotations": {},
    }
    return {"$schema": f"{SCHEMAS}/source/v1alpha1/Source", "headers": headers, "spec": fields}


def a_controller(*, read: Any = a_set, is_multi_tenant: bool = True) -> SourceController:
    return SourceController(read=read, keys=lambda: KEYS, is_multi_tenant=is_multi_tenant)


def test_a_source_is_polled_with_the_values_of_its_sets_and_masks_the_secret_ones() -> None:
    polled = a_controller().polled_source(a_source())
    step, secrets = polled.fill(polled.definition.fetch)
    assert isinstance(step, FetchStepUrl)
    assert step.headers is not None
    assert (step.url, step.headers[0].value) == ("https://example.org/2020-01-01.csv", "Bearer swordfish")
    assert secrets.mask("swordfish on 2020-01-01") == "*** on 2020-01-01"
    assert polled.definition.merge == MergeStrategyAppend()
    assert "swordfish" not in repr(polled.definition)


def test_a_chain_knows_a_source_by_its_id_or_by_the_name_that_it_had_there() -> None:
    source = a_source()
    assert a_controller().polled_source(source).name == source["headers"]["id"]
    source["headers"]["annotations"]["legacySourceName"] = "default"
    assert a_controller().polled_source(source).name == "default"


def test_a_path_leads_into_a_value_that_is_json() -> None:
    config = {"token": handle("SecretSet", "Tok.en"), "day": handle("VariableSet", "db.port")}
    polled = a_controller().polled_source(a_source(config=config))
    step, _ = polled.fill(polled.definition.fetch)
    assert isinstance(step, FetchStepUrl)
    assert step.url == "https://example.org/5113.csv"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"config": {}}, "config.day is not declared"),
        (
            {"config": {"token": handle("SecretSet", "none"), "day": handle("VariableSet", "from")}},
            "SecretSet:secretset#none: the set has no such key",
        ),
        ({"ingress": TOPICS}, "topics belong to the node's cluster"),
        ({"ingress": {**TOPICS, "topics": []}}, "expected the names of topics"),
        ({"ingress": {**TOPICS, "start": "soon"}}, "spec.ingress (topicStart): expected earliest, latest"),
        ({"ingress": {**TOPICS, "idleTimeout": "soon"}}, "spec.ingress (idleTimeout): expected a duration"),
        ({"ingress": {"kind": "EvmLogs", "chainId": 1}}, "unsupported"),
        ({"ingress": {"kind": "FilesGlob", "path": "/data/*.csv"}}, "FilesGlob uses the node's machine"),
        ({"ingress": {"kind": "Url", "url": "file:///etc/passwd"}}, "Url uses the node's machine"),
        ({"prepare": [{"kind": "Pipe", "command": ["cat"]}]}, "Pipe uses the node's machine"),
        ({"ingress": {"kind": "Url", "url": "https://e.org/${{ env.KEY }}"}}, "env.KEY is not available"),
    ],
)
def test_a_source_that_cannot_be_polled_is_rejected(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        a_controller().reconcile(a_source(**change))
    assert text in str(refused.value)
    assert "swordfish" not in str(refused.value)


def test_files_of_the_machine_are_read_on_a_single_tenant_node() -> None:
    ingress = {"kind": "FilesGlob", "path": "/data/*.csv"}
    assert a_controller(is_multi_tenant=False).reconcile(a_source(ingress=ingress)) == {}


def test_a_source_that_takes_pushes_or_reads_topics_is_ready() -> None:
    assert a_controller().reconcile(a_source({"kind": "RestEndpoint"})) == {}
    fields = {
        "keyColumns": ["id"],
        "headerColumns": {"trace-id": "trace"},
        "registry": "http://registry:8081",
    }
    topics = a_source({**TOPICS, **fields, "start": "latest"})
    assert a_controller(is_multi_tenant=False).reconcile(topics) == {}
    ingress = source_spec(topics).ingress
    assert isinstance(ingress, IngressKafkaTopic)
    assert topic_settings(ingress).non_default() == {
        "topics": "shop.*",
        "topicStart": "latest",
        "keyColumns": "id",
        "headerColumns": "trace-id:trace",
        "schemaRegistry": "http://registry:8081",
    }


def test_an_ingress_is_not_replaced_before_what_it_took_is_committed() -> None:
    controller = replace(a_controller(), count_accepted=lambda _: 3)
    assert controller.reconcile(a_source({"kind": "RestEndpoint"})) == {}
    with pytest.raises(InvalidInput, match="3 records were accepted before and are not committed"):
        controller.reconcile(a_source())


def test_a_source_waits_for_a_set_that_is_missing_or_was_deleted() -> None:
    def gone(*_: object, **__: object) -> dict[str, Any]:
        raise NotFound(what="SecretSet bank")

    with pytest.raises(DependencyMissing, match="does not exist any more"):
        a_controller(read=gone).reconcile(a_source())
    source = a_source()
    del source["spec"]["config"]["token"]["id"]
    with pytest.raises(DependencyMissing, match="SecretSet secretset does not exist"):
        a_controller().reconcile(source)
