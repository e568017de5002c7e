"""Which modules are mutated, and which tests are nearest to each."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

COMMON: Final = "libs/odf_common/odf_common"
COORDINATOR: Final = "services/coordinator/odf_coordinator"
INGEST: Final = "services/ingest/odf_ingest"
VERIFIER: Final = "services/verifier/odf_verifier"
SYNC: Final = "services/sync/odf_sync"


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    """Return the tests of a folder: `push/file` is `push/test_file.py`, and `push/` the whole folder."""
    return tuple(f"{folder}/{_path(*name.rpartition('/'))}" for name in names)


def _path(folder: str, slash: str, name: str) -> str:
    return f"{folder}{slash}test_{name}.py" if name else folder


_common = partial(_tests, "libs/odf_common/tests")
_coordinator = partial(_tests, "services/coordinator/tests")
_ingest = partial(_tests, "services/ingest/tests")
_sync = partial(_tests, "services/sync/tests")
_verifier = partial(_tests, "services/verifier/tests")

# Patterns of modules, and the tests that are run for each of them; the quickest come first. The first pattern that
# fits a module counts.
NEAREST: Final[Mapping[str, tuple[str, ...]]] = {
    f"{COMMON}/chain/*.py": _common("chain/", "dataset/"),
    f"{COMMON}/chain/rules/*.py": _common("chain/"),
    f"{COMMON}/codec/flatbuffers/reader.py": _common("codec/"),
    f"{COMMON}/codec/flatbuffers/untrusted_buffer.py": _common("codec/"),
    f"{COMMON}/data/slice_checks.py": (*_common("data/checks"), *_sync("objects", "downloads")),
    f"{COMMON}/adapters/local/repositories.py": _common("adapters/repositories"),
    f"{COMMON}/adapters/local/[bdr]*.py": (
        *_common(
            "adapters/local_files",
            "adapters/local_store",
            "adapters/locks",
            "adapters/durability",
            "adapters/reserve",
            "adapters/os_faults",
        ),
        *_coordinator("power_cuts"),
    ),
    f"{COMMON}/adapters/s3/cache.py": _common("adapters/object_cache", "adapters/s3_store"),
    f"{COMMON}/adapters/s3/location.py": _common("adapters/s3_location"),
    f"{COMMON}/adapters/s3/*.py": (
        *_common("adapters/bucket_uploads", "adapters/s3_store", "adapters/s3_faults"),
        *_coordinator("stores_in_a_bucket"),
    ),
    f"{COMMON}/adapters/local/ca*.py": (
        *_common("adapters/local_files", "adapters/local_store", "adapters/durability", "adapters/os_faults"),
        *_coordinator("collector", "power_cuts"),
    ),
    f"{COMMON}/adapters/local/claims.py": (
        *_common("adapters/local_files", "adapters/local_store", "adapters/durability", "adapters/os_faults"),
        *_coordinator("collector", "adding"),
    ),
    f"{COMMON}/adapters/local/s*.py": _common("adapters/scratch", "adapters/staging", "adapters/os_faults"),
    f"{COMMON}/dataset/re[jp]*.py": (
        *_common("dataset/rejects", "dataset/replay"),
        *_ingest("rejected", "poll/retried_rows", "push/rejected_rows"),
    ),
    f"{COMMON}/dataset/signature_check.py": (*_coordinator("signing"), *_verifier("signatures")),
    f"{COMMON}/dataset/stored_dataset.py": (
        *_common("dataset/"),
        *_coordinator("query_evolution", "unreadable_datasets"),
        *_verifier("integrity"),
    ),
    f"{COMMON}/dataset/*.py": (
        *_common("dataset/"),
        *_verifier("migrations", "dropped"),
        *_sync("restoring"),
        *_ingest("arrow_streams"),
    ),
    f"{COMMON}/service/consumer/consumer_loop.py": _common("service/consumer_loop"),
    f"{COMMON}/service/consumer/message_lanes.py": _common("service/message_lanes", "service/consumer_loop"),
    f"{COMMON}/service/consumer/pools.py": _common("service/pools"),
    f"{COMMON}/service/metrics.py": _common("service/metrics"),
    f"{COMMON}/service/protection.py": (
        *_common("service/protection", "service/metrics"),
        *_coordinator("views"),
        *_sync("who_may_do_what", "ingest_routes"),
    ),
    f"{COMMON}/service/consumer/retry.py": (
        *_common("service/retry", "service/consumer_loop"),
        *_ingest("push/file"),
    ),
    f"{COMMON}/service/request_reply.py": (*_common("service/request_reply"), *_ingest("push/file")),
    f"{COORDINATOR}/commit/[cd]*.py": _coordinator(
        "committer", "duplicates", "dataset_locks", "imports", "copies", "signing", "unreadable_datasets"
    ),
    f"{COORDINATOR}/operations/import_chain.py": _coordinator("imports", "committer", "references"),
    f"{COORDINATOR}/operations/ingest_client.py": _coordinator("ingest_client"),
    f"{COORDINATOR}/operations/read.py": _coordinator("servicer", "changing", "references"),
    f"{COORDINATOR}/operations/*.py": _coordinator(
        "changing",
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
        "servicer",
        "operation_details",
        "change_commands",
        "adding",
        "kills",
    ),
    f"{COORDINATOR}/transforms/progress.py": _coordinator("underway", "slow_transforms", "troubles"),
    f"{COORDINATOR}/transforms/late_counter.py": _coordinator("underway", "pull_outcomes", "scheduler"),
    f"{COORDINATOR}/transforms/migration.py": _coordinator("query_evolution", "changing", "engine_version"),
    f"{COORDINATOR}/transforms/*.py": _coordinator(
        "planner",
        "scheduler",
        "transforms",
        "slow_transforms",
        "changing",
        "query_evolution",
        "graphs",
        "troubles",
        "diverged",
    ),
    f"{COORDINATOR}/api/*.py": _coordinator(
        "servicer",
        "operation_details",
        "sentinel_times",
        "handlers",
        "references",
        "changing",
        "troubles",
        "copies",
    ),
    f"{COORDINATOR}/catalog/dependency_guard.py": _coordinator("circles", "changing", "adding"),
    f"{COORDINATOR}/catalog/ownership.py": _coordinator("copies", "adding", "signing"),
    f"{COORDINATOR}/catalog/partitions.py": _coordinator("partitions", "handlers", "troubles"),
    f"{COORDINATOR}/catalog/*.py": _coordinator(
        "registry",
        "troubles",
        "unreadable_datasets",
        "changing",
        "graphs",
        "handlers",
        "references",
        "copies",
    ),
    f"{COORDINATOR}/commit/head_publisher.py": _coordinator("handlers", "board"),
    f"{COORDINATOR}/commit/*.py": _coordinator("outcomes", "handlers", "committer"),
    f"{COORDINATOR}/definitions/create.py": _coordinator(
        "creating_races", "adding", "changing", "copies", "circles", "query_evolution", "transforms"
    ),
    f"{COORDINATOR}/definitions/*.py": _coordinator(
        "kept_columns",
        "declarations",
        "polling_declarations",
        "adding",
        "changing",
        "query_evolution",
        "engine_version",
    ),
    f"{COORDINATOR}/lifecycle/collector.py": _coordinator("collector"),
    f"{COORDINATOR}/lifecycle/*.py": _coordinator(
        "claims",
        "adding",
        "operation_details",
        "unreadable_datasets",
        "collector",
        "imports",
        "changing",
        "deleted_datasets_leave_nothing",
        "kills",
    ),
    f"{COORDINATOR}/storage/*.py": _coordinator(
        "registry", "slice_index", "committer", "imports", "dropped_data", "copies"
    ),
    f"{COORDINATOR}/views/*.py": _coordinator("board", "sentinel_times", "views"),
    f"{COORDINATOR}/*.py": _coordinator("changing", "diverged", "dropped_data"),
    f"{VERIFIER}/*.py": ("services/verifier/tests",),
    f"{SYNC}/access/audit.py": _sync("audit"),
    f"{SYNC}/access/rate_limits.py": _sync("shares", "connection_limits"),
    f"{SYNC}/access/*.py": _sync(
        "access_rules",
        "access_store",
        "who_may_do_what",
        "account_routes",
        "openapi",
        "audit",
        "remote_login",
    ),
    f"{SYNC}/http/authorization.py": _sync(
        "who_may_do_what", "endpoints", "ingest_routes", "list_routes", "access_store", "smart_pushes"
    ),
    f"{SYNC}/http/account_routes.py": _sync("account_routes", "openapi", "audit", "remote_login"),
    f"{SYNC}/http/simple_protocol/block_packs.py": _sync("packs", "signed_pulls"),
    f"{SYNC}/http/connections.py": _sync(
        "upload_refusals", "connection_limits", "recorded_transfers", "simple_protocol"
    ),
    f"{SYNC}/http/simple_protocol/dataset_routes.py": _sync(
        "simple_protocol", "recorded_transfers", "signed_pulls", "uploads", "push_checks", "object_downloads"
    ),
    f"{SYNC}/http/endpoints.py": _sync(
        "endpoints",
        "audit",
        "who_may_do_what",
        "account_routes",
        "openapi",
        "connection_limits",
        "smart_pushes",
    ),
    f"{SYNC}/http/event_routes.py": _sync("event_routes"),
    f"{SYNC}/http/head_watch.py": _sync("event_routes", "webhooks"),
    f"{SYNC}/http/ingest_*.py": _sync("ingest_routes"),
    f"{SYNC}/http/list_routes.py": _sync("list_routes"),
    f"{SYNC}/http/simple_protocol/object_downloads.py": _sync("object_downloads", "simple_protocol"),
    f"{SYNC}/http/simple_protocol/object_uploads.py": _sync("upload_refusals", "uploads", "smart_pushes"),
    f"{SYNC}/http/open_pushes.py": _sync(
        "open_pushes", "push_checks", "interrupted_transfers", "smart_pushes", "smart_hostile_clients"
    ),
    f"{SYNC}/http/openapi.py": _sync("who_may_do_what", "openapi"),
    f"{SYNC}/http/smart_protocol/*.py": _sync(
        "smart_faults",
        "smart_connections",
        "ends_of_exchanges",
        "smart_pushes",
        "smart_replays",
        "smart_client_replays",
        "recorded_transfers",
        "push_checks",
        "smart_hostile_clients",
        "signed_pushes",
    ),
    f"{SYNC}/private_database.py": _sync("private_database", "access_store", "webhooks"),
    f"{SYNC}/repositories/*.py": _sync(
        "transfer_details",
        "named_places",
        "folder_target",
        "node_client",
        "packs",
        "downloads",
        "simple_protocol",
        "s3_repository",
        "s3_pushes",
        "smart_pushes",
        "recorded_transfers",
        "smart_replays",
        "smart_client_replays",
        "signed_pulls",
        "signed_pushes",
        "folder_pushes",
        "blocks_encoded_again",
        "search",
        "pull_commits",
        "interrupted_s3_transfers",
    ),
    f"{SYNC}/search/*.py": _sync("search_details", "search", "list_routes"),
    f"{SYNC}/smart/archive.py": _sync("smart_exchange", "signed_pushes", "recorded_transfers"),
    f"{SYNC}/smart/*.py": _sync(
        "smart_faults",
        "smart_exchange",
        "smart_connections",
        "smart_pushes",
        "smart_replays",
        "smart_client_replays",
        "recorded_transfers",
    ),
    f"{SYNC}/transfer/block_signatures.py": _sync("signed_pulls", "signed_pushes"),
    f"{SYNC}/transfer/*.py": _sync(
        "transfer_details",
        "objects",
        "acceptance",
        "push_checks",
        "node_client",
        "pull_places",
        "pull_commits",
        "restoring",
        "named_places",
        "folder_target",
        "folder_pushes",
        "downloads",
        "packs",
        "simple_protocol",
        "smart_pushes",
        "uploads",
        "partial_files",
        "forced_pulls",
        "s3_pushes",
        "remote_login",
        "smart_replays",
        "smart_client_replays",
        "smart_connections",
        "copies_without_data",
        "blocks_encoded_again",
        "interrupted_transfers",
        "signed_pulls",
        "signed_pushes",
    ),
    f"{SYNC}/webhooks/*.py": _sync("webhooks", "webhook_declarations"),
    f"{INGEST}/commit/position.py": _ingest("position", "push/topics_of_others", "push/file"),
    f"{INGEST}/commit/committer.py": _ingest("push/messages", "push/file"),
    f"{INGEST}/commit/rejects.py": _ingest("push/messages", "rejected", "poll/bad_rows", "push/reader"),
    f"{INGEST}/commit/watermark.py": _ingest("push/watermarks"),
    f"{INGEST}/poll/fetch/mqtt*.py": _ingest(
        "poll/states_of_others", "poll/mqtt_bytes", "poll/mqtt_packets", "poll/mqtt"
    ),
    f"{INGEST}/poll/fetch/ftp.py": _ingest("poll/ftp"),
    f"{INGEST}/poll/fetch/container.py": _ingest("poll/container"),
    f"{INGEST}/poll/fetch/command.py": _ingest("poll/unpack", "poll/container"),
    f"{INGEST}/poll/fetch/fetch_step.py": _ingest("poll/mqtt", "poll/retried_rows", "poll/poller"),
    f"{INGEST}/poll/fetch/*.py": _ingest("poll/files_glob", "poll/url", "poll/ftp", "poll/unpack"),
    f"{INGEST}/poll/unpack/*.py": _ingest("unsupported_steps", "poll/unpack"),
    f"{INGEST}/poll/schedule.py": _ingest("poll/schedule", "poll/settings"),
    f"{INGEST}/poll/polled_position.py": _ingest(
        "poll/states_of_others",
        "poll/position_of_polls",
        "poll/files_glob",
        "poll/bad_rows",
        "poll/container",
    ),
    f"{INGEST}/poll/*.py": _ingest("unsupported_steps", "poll/"),
    f"{INGEST}/prepare/bad_rows.py": _ingest(
        "bad_rows", "push/rejected_rows", "poll/bad_rows", "push/messages"
    ),
    f"{INGEST}/push/kafka_batch.py": _ingest(
        "push/messages", "push/snapshots", "push/watermarks", "push/reader", "push/halves"
    ),
    f"{INGEST}/push/start_position.py": _ingest("push/start_position", "push/reader"),
    f"{INGEST}/registry/*.py": _ingest("registry/", "push/registry_sources"),
    f"{INGEST}/accept/*.py": _ingest("accept/"),
    f"{INGEST}/api/arrow_streams.py": _ingest("arrow_streams"),
    f"{INGEST}/api/*.py": _ingest(
        "ingest_servicer",
        "push_servicer",
        "arrow_streams",
        "push/file",
        "push/inflight",
        "push/control",
        "poll/schedule",
    ),
    f"{INGEST}/commit/commit_queue.py": _ingest(
        "commit_queue", "push/messages", "push/file", "push/building_index", "poll/bad_rows"
    ),
    f"{INGEST}/commit/file_commit.py": _ingest(
        "push/file", "push/rejected_rows", "push/inflight", "push/snapshots", "arrow_streams"
    ),
    f"{INGEST}/commit/in_flight.py": _ingest("push/inflight", "push/file"),
    f"{INGEST}/commit/*.py": _ingest(
        "slices", "push/file", "push/messages", "push/watermarks", "merge/over_slices"
    ),
    f"{INGEST}/control/*move.py": _ingest("push/control", "push/topics_of_others"),
    f"{INGEST}/control/re*.py": _ingest("rejected", "push/rejected_rows", "poll/retried_rows"),
    f"{INGEST}/control/drain.py": _ingest("drains", "push/reader", "push/control", "push/halves"),
    f"{INGEST}/control/*.py": _ingest(
        "resumable",
        "push/control",
        "push/continuing",
        "push/stuck_sources",
        "push/settings",
        "poll/settings",
        "push/topics_of_others",
        "push/reader",
    ),
    f"{INGEST}/history/equality.py": _ingest("merge/equality", "merge/strategies"),
    f"{INGEST}/history/run*.py": _ingest("run_store", "current_rows", "push/building_index"),
    f"{INGEST}/history/*.py": _ingest(
        "current_rows",
        "merge_keys",
        "run_store",
        "merge/strategies",
        "merge/over_slices",
        "push/building_index",
    ),
    f"{INGEST}/merge/*.py": _ingest(
        "merge/rules",
        "merge/operation_faults",
        "unsupported_steps",
        "merge/sorted_keys",
        "merge/equality",
        "merge/strategies",
        "merge/over_slices",
        "merge/real_changes",
        "push/odd_messages",
    ),
    f"{INGEST}/prepare/*.py": _ingest(
        "push/message_batch",
        "preprocess",
        "push/source",
        "bad_rows",
        "push/messages",
        "push/file",
        "push/message_columns",
        "push/watermarks",
        "push/rejected_rows",
        "push/halves",
        "push/odd_messages",
        "push/snapshots",
        "merge/real_changes",
        "poll/bad_rows",
    ),
    f"{INGEST}/push/source*.py": _ingest(
        "push/source",
        "push/start_position",
        "push/watermarks",
        "push/topics_of_others",
        "push/reader",
        "push/control",
        "push/stuck_sources",
    ),
    f"{INGEST}/push/*.py": _ingest(
        "push/lanes",
        "push/machine",
        "push/source",
        "push/reader",
        "push/halves",
        "push/stuck_sources",
        "push/topics_of_others",
        "push/registry_sources",
        "push/building_index",
        "push/control",
    ),
    f"{INGEST}/read/csv_format/*.py": _ingest(
        "read/csv_grammar",
        "read/csv",
        "read/options",
        "read/bad_values",
        "read/odd_values",
        "read/exact_values",
        "push/rejected_rows",
    ),
    f"{INGEST}/read/geo/*.py": _ingest("read/shapes", "read/geojson", "read/shapefile"),
    f"{INGEST}/read/json_formats/*.py": _ingest(
        "read/json",
        "read/ndjson",
        "read/exact_values",
        "read/inferred",
        "read/odd_values",
        "read/geojson",
        "push/rejected_rows",
    ),
    f"{INGEST}/read/types/*.py": _ingest(
        "read/times",
        "read/types",
        "read/odd_values",
        "read/bad_values",
        "read/exact_values",
        "read/inferred",
        "registry/protobuf",
        "registry/avro",
    ),
    f"{INGEST}/read/message_buffer.py": _ingest("push/source", "sift", "push/message_batch"),
    f"{INGEST}/read/*.py": _ingest("unsupported_steps", "sift", "read/", "push/rejected_rows"),
    f"{INGEST}/errors.py": _ingest("push/snapshots", "push/stuck_sources", "push/control"),
    f"{INGEST}/message_columns.py": _ingest("push/message_columns", "source_settings"),
    f"{INGEST}/topic_names.py": _ingest("push/topics_of_others", "source_settings"),
    f"{INGEST}/*.py": _ingest(
        "sampling", "source_settings", "push/settings", "poll/settings", "push/messages", "push/halves"
    ),
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
