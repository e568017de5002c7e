"""Which modules are mutated, and which tests are nearest to each."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.mutants.nearest_ingest import INGEST_TESTS
from tests.mutants.nearest_sync import SYNC_TESTS
from tests.mutants.paths import (
    COMMON,
    COORDINATOR,
    INGEST,
    SYNC,
    VERIFIER,
    of_cli,
    of_common,
    of_coordinator,
    of_ingest,
    of_support,
    of_sync,
    of_verifier,
)

# Patterns of modules, and the tests that are run for each of them; the quickest come first. The first pattern that
# fits a module counts.
NEAREST: Final[Mapping[str, tuple[str, ...]]] = {
    f"{COMMON}/chain/*.py": of_common("chain/", "dataset/"),
    f"{COMMON}/chain/rules/*.py": of_common("chain/"),
    f"{COMMON}/hashing/*.py": of_common("hashing/"),
    f"{COMMON}/identity/*.py": (*of_common("identity/", "adapters/local_store"), *of_cli("name_lookup")),
    f"{COMMON}/metadata/*.py": of_common("metadata/", "codec/", "chain/"),
    f"{COMMON}/codec/flatbuffers/*.py": of_common("codec/"),
    f"{COMMON}/codec/*.py": (*of_common("codec/"), *of_cli("schema_command", "prove_command")),
    f"{COMMON}/data/slice_checks.py": (*of_common("data/slice_checks"), *of_sync("objects", "downloads")),
    f"{COMMON}/data/read_options.py": of_ingest("read/options", "read/times"),
    f"{COMMON}/data/time_format.py": of_ingest("read/times", "read/options"),
    f"{COMMON}/data/json_values.py": (
        *of_common("data/json_values"),
        *of_cli("rows", "every_value_is_shown"),
    ),
    f"{COMMON}/data/**/*.py": of_common("data/", "hashing/", "codec/"),
    f"{COMMON}/adapters/redis.py": of_common("adapters/redis_adapter"),
    f"{COMMON}/adapters/local/repositories.py": of_common("adapters/repositories"),
    f"{COMMON}/adapters/local/[bdr]*.py": (
        *of_common(
            "adapters/local_files",
            "adapters/local_store",
            "adapters/locks",
            "adapters/durability",
            "adapters/reserve",
            "adapters/os_faults",
        ),
        *of_coordinator("power_cuts"),
    ),
    f"{COMMON}/adapters/s3/cache.py": of_common("adapters/object_cache", "adapters/s3_store"),
    f"{COMMON}/adapters/s3/location.py": of_common("adapters/s3_location"),
    f"{COMMON}/adapters/s3/*.py": (
        *of_common(
            "adapters/bucket_uploads", "adapters/bucket_clients", "adapters/s3_store", "adapters/s3_faults"
        ),
        *of_coordinator("stores_in_a_bucket"),
    ),
    f"{COMMON}/adapters/local/ca*.py": (
        *of_common(
            "adapters/local_names",
            "adapters/local_files",
            "adapters/local_store",
            "adapters/durability",
            "adapters/os_faults",
        ),
        *of_coordinator("collector", "power_cuts"),
    ),
    f"{COMMON}/adapters/local/claims.py": (
        *of_common(
            "adapters/local_files", "adapters/local_store", "adapters/durability", "adapters/os_faults"
        ),
        *of_coordinator("collector", "create"),
    ),
    f"{COMMON}/adapters/local/s*.py": of_common("adapters/scratch", "adapters/staging", "adapters/os_faults"),
    f"{COMMON}/dataset/re[jp]*.py": (
        *of_common("dataset/open_rejects", "dataset/replay"),
        *of_ingest("rejected", "poll/retried_rows", "push/rejected_rows"),
    ),
    f"{COMMON}/dataset/resume_position.py": (*of_cli("wrong_values"), *of_ingest("push/control")),
    f"{COMMON}/dataset/signature_check.py": (*of_coordinator("signing"), *of_verifier("signatures")),
    f"{COMMON}/dataset/state_codec.py": of_common("chain/laws", "chain/chain"),
    f"{COMMON}/dataset/node_datasets.py": (
        *of_common("dataset/"),
        *of_coordinator("query_evolution", "unreadable_datasets"),
        *of_verifier("integrity"),
    ),
    f"{COMMON}/dataset/*.py": (
        *of_common("dataset/"),
        *of_verifier("migrations", "dropped"),
        *of_sync("restoring"),
        *of_ingest("position", "arrow_streams"),
    ),
    f"{COMMON}/ports/clock.py": of_common("service/retry", "adapters/s3_faults"),
    f"{COMMON}/ports/store.py": (
        *of_common("adapters/local_store", "adapters/local_names"),
        *of_support("memory_store"),
        *of_sync("packs", "private_copies"),
    ),
    f"{COMMON}/service/connections.py": of_common("service/connections"),
    f"{COMMON}/service/consumer/consumer_loop.py": of_common("service/reader_order", "service/consumer_loop"),
    f"{COMMON}/service/consumer/message_lanes.py": of_common(
        "service/message_lanes", "service/consumer_loop"
    ),
    f"{COMMON}/service/consumer/pools.py": of_common("service/pools"),
    f"{COMMON}/service/metrics.py": of_common("service/metrics"),
    f"{COMMON}/service/protection.py": (
        *of_common("service/protection", "service/metrics"),
        *of_coordinator("views"),
        *of_sync("who_may_do_what", "ingest_routes"),
    ),
    f"{COMMON}/service/consumer/retry.py": (
        *of_common("service/retry", "service/consumer_loop"),
        *of_ingest("push/file"),
    ),
    f"{COMMON}/service/request_reply.py": (*of_common("service/request_reply"), *of_ingest("push/file")),
    f"{COORDINATOR}/commit/[cd]*.py": of_coordinator(
        "committer",
        "commit_command",
        "duplicates",
        "dataset_locks",
        "imports",
        "copies",
        "signing",
        "unreadable_datasets",
        "operation_details",
    ),
    f"{COORDINATOR}/catalog/chain_problems.py": of_coordinator("chain_problems"),
    f"{COORDINATOR}/operations/import_chain.py": of_coordinator(
        "imports", "foreign_definitions", "committer", "references", "dependency_guard", "copies_without_data"
    ),
    f"{COORDINATOR}/operations/ingest_client.py": of_coordinator("ingest_client"),
    f"{COORDINATOR}/operations/read.py": of_coordinator("servicer", "modify", "references"),
    f"{COORDINATOR}/operations/*.py": of_coordinator(
        "modify",
        "names",
        "pull_outcomes",
        "diverged",
        "dropped_data",
        "dropping_races",
        "dropping_engines",
        "copies",
        "references",
        "concurrent_pulls",
        "transforms",
        "unreadable_datasets",
        "copies_without_data",
        "slow_transforms",
        "query_evolution",
        "declarations",
        "conflicting_sources",
        "servicer",
        "operation_details",
        "change_commands",
        "graphs",
        "create",
        "dependency_guard",
        "claims",
        "kills",
    ),
    f"{COORDINATOR}/transforms/progress.py": of_coordinator("progress", "slow_transforms", "troubles"),
    f"{COORDINATOR}/transforms/late_counter.py": of_coordinator("progress", "pull_outcomes", "scheduler"),
    f"{COORDINATOR}/transforms/migration.py": of_coordinator(
        "query_evolution", "modify", "engine_version", "creating_races"
    ),
    f"{COORDINATOR}/transforms/*.py": of_coordinator(
        "work_queue",
        "scheduler",
        "transforms",
        "slow_transforms",
        "modify",
        "names",
        "query_evolution",
        "graphs",
        "troubles",
        "diverged",
        "batches",
        "dropped_data",
    ),
    f"{COORDINATOR}/api/*.py": of_coordinator(
        "servicer",
        "operation_details",
        "sentinel_times",
        "handlers",
        "references",
        "modify",
        "names",
        "troubles",
        "copies",
    ),
    f"{COORDINATOR}/catalog/dependency_guard.py": of_coordinator("dependency_guard", "modify", "create"),
    f"{COORDINATOR}/catalog/ownership.py": of_coordinator("copies", "create", "signing", "creating_races"),
    f"{COORDINATOR}/catalog/partitions.py": of_coordinator("partitions", "handlers", "troubles"),
    f"{COORDINATOR}/catalog/*.py": of_coordinator(
        "registry",
        "troubles",
        "unreadable_datasets",
        "modify",
        "names",
        "graphs",
        "handlers",
        "references",
        "copies",
    ),
    f"{COORDINATOR}/commit/head_publisher.py": of_coordinator("handlers", "live_table"),
    f"{COORDINATOR}/commit/*.py": of_coordinator("outcomes", "handlers", "committer", "sentinel_times"),
    f"{COORDINATOR}/definitions/create.py": of_coordinator(
        "creating_races",
        "create",
        "polling_declarations",
        "modify",
        "names",
        "copies",
        "dependency_guard",
        "query_evolution",
        "transforms",
    ),
    f"{COORDINATOR}/definitions/*.py": of_coordinator(
        "diff",
        "kept_columns",
        "declarations",
        "conflicting_sources",
        "declared_schemas",
        "polling_declarations",
        "create",
        "modify",
        "names",
        "query_evolution",
        "engine_version",
    ),
    f"{COORDINATOR}/lifecycle/collector.py": of_coordinator("collector"),
    f"{COORDINATOR}/lifecycle/*.py": of_coordinator(
        "claims",
        "create",
        "operation_details",
        "unreadable_datasets",
        "collector",
        "imports",
        "modify",
        "names",
        "deleted_datasets_leave_nothing",
        "kills",
    ),
    f"{COORDINATOR}/storage/*.py": of_coordinator(
        "registry", "slice_index", "committer", "imports", "dropped_data", "copies"
    ),
    f"{COORDINATOR}/views/*.py": of_coordinator("live_table", "sentinel_times", "views_credentials", "views"),
    f"{COORDINATOR}/*.py": of_coordinator("operation_details", "modify", "diverged", "dropped_data"),
    f"{VERIFIER}/*.py": ("services/verifier/tests",),
    **SYNC_TESTS,
    **INGEST_TESTS,
}
# Wiring that a node needs; no unit test is meant to run it.
LEFT_OUT: Final = frozenset(
    {
        f"{SYNC}/service.py",
        f"{SYNC}/grpc_servicer.py",
        f"{SYNC}/http/server.py",
        f"{VERIFIER}/service.py",
        f"{VERIFIER}/__main__.py",
        f"{INGEST}/service.py",
        f"{COORDINATOR}/service.py",
    }
)


def targets(root: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Iterate over the paths of the modules, each once, with its tests."""
    found = set(LEFT_OUT)
    for pattern, tests in NEAREST.items():
        for file in sorted(root.glob(pattern)):
            path = file.relative_to(root).as_posix()
            if path not in found:
                found.add(path)
                yield path, tests
