"""Table of remedies and problems: each command that a message names is followed by a test, after which the problem is gone.

The messages are found in the code: texts of the product that name a command of `odf` between backticks. One without a
row fails here, and so does a row without its message. Commands that only show something need no row.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.docs.test_commands_exist import problem

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = sorted([*ROOT.glob("libs/*/odf_*/**/*.py"), *ROOT.glob("services/*/odf_*/**/*.py")])
NAMED: Final = re.compile(r"`(odf [^`]*)`|^(odf [a-z]+ [^`]*)$")
WORDS: Final = re.compile(r"odf ((?:[a-z-]+(?: |$))*)")
SHOW: Final = frozenset(
    (
        *(
            "config",
            "doctor",
            "explain",
            "get",
            "inspect",
            "list",
            "types",
            "log",
            "rejected list",
            "ref list",
            "repo list",
            "source show",
        ),
        *("schema", "sql", "status", "tail", "topics", "verify"),
    )
)
GROUPS: Final = frozenset(
    ("access", "account", "engine", "key", "ref", "rejected", "repo", "source", "system", "token")
)

HELP: Final = "tests/integration/test_remedies_help.py"
FAILS: Final = f"{HELP}::test_a_query_that_fails_on_a_record_continues_with_the_one_that_the_remedy_proposes"
WAITS: Final = f"{HELP}::test_what_a_derivative_waits_for_comes_by_the_command_that_it_names"
FUTURE: Final = f"{HELP}::test_a_watermark_in_the_future_goes_back_by_the_commands_of_its_problem"
STOPPED: Final = f"{HELP}::test_a_source_that_is_stopped_continues_by_the_command_of_its_problem"
LATE: Final = f"{HELP}::test_late_records_are_late_no_more_after_the_delay_that_the_remark_proposes"
LOST: Final = f"{HELP}::test_dropped_and_lost_data_comes_back_by_the_command_that_is_named"
REFS: Final = f"{HELP}::test_references_and_names_that_are_damaged_are_removed_by_the_command_that_is_named"
REFUSED: Final = f"{HELP}::test_a_refused_push_or_poll_passes_after_the_command_that_is_named"
COPIES: Final = f"{HELP}::test_copies_are_completed_and_taken_over_by_the_commands_that_are_named"
LACKS: Final = f"{HELP}::test_files_that_the_source_of_a_copy_lacks_are_recomputed_as_the_remark_says"
EXPIRED: Final = (
    f"{HELP}::test_rejected_messages_that_are_gone_are_no_longer_counted_after_the_command_of_the_remark"
)
SPACE: Final = f"{HELP}::test_space_is_freed_by_the_commands_that_are_named"
COORDINATOR: Final = "services/coordinator/tests"
UPGRADE: Final = "tests/integration/test_the_engine_is_upgraded.py"
SKIPPED: Final = "services/ingest/tests/poll/test_files_glob.py"
# Message → the test that provokes it, does what it names, and sees that the problem is gone.
FOLLOWED: Final = {
    "odf_common/adapters/local/catalog.py CorruptName.advice": (
        f"{COORDINATOR}/test_names.py::test_a_name_that_cannot_be_read_is_freed_as_advised"
    ),
    "odf_common/adapters/local/key_files.py NoPrivateKey.advice": COPIES,
    "odf_common/adapters/local/key_files.py NotOwned.advice": COPIES,
    "odf_common/adapters/local/stores.py CorruptRef.advice": (
        f"{COORDINATOR}/test_references.py::test_a_reference_that_cannot_be_read_hides_no_other"
    ),
    "odf_common/adapters/local/repositories.py UnknownRepository.advice": LOST,
    "odf_common/adapters/local/resource_backup.py StoreInUse.advice": (
        "tests/integration/test_resources_are_backed_up.py"
        "::test_resources_survive_a_rotation_and_are_restored_with_their_secrets"
    ),
    "odf_common/resources/secret_encryption.py InvalidJwe.advice": (
        "tests/integration/test_secrets_are_encrypted_by_clients.py"
        "::test_what_the_command_encrypts_only_the_node_opens_before_and_after_a_rotation"
    ),
    "odf_common/chain/arrivals.py ACCEPT": (
        f"{COORDINATOR}/test_foreign_definitions.py"
        "::test_the_sender_of_a_chain_does_not_decide_what_this_node_runs"
    ),
    "odf_common/chain/build_blocks.py ClockBehind.advice": (
        f"{COORDINATOR}/test_chain_problems.py::test_a_head_from_the_future_is_named_with_the_block_to_go_back_to"
    ),
    "odf_cli/clients.py NoAccount.advice": (
        "tests/integration/test_a_node_of_several_accounts.py"
        "::test_no_port_of_a_multi_tenant_node_serves_another_user"
    ),
    "odf_cli/commands/keys.py import_": COPIES,
    "odf_cli/commands/new.py _topic": (
        "tests/integration/test_changes_of_a_table.py"
        "::test_the_manifest_from_a_topic_reads_its_changes_without_editing"
    ),
    "odf_cli/commands/pull.py _remark_missing": LACKS,
    "odf_cli/commands/rejected.py list_rejected": EXPIRED,
    "odf_cli/commands/status.py dataset_problems": STOPPED,
    "odf_cli/commands/status.py disk_problems": SPACE,
    "odf_cli/suggestions.py future_remark": (
        "services/ingest/tests/test_ingest_servicer.py"
        "::test_records_too_far_in_the_future_are_listed_until_their_source_allows_such_times"
    ),
    "odf_cli/suggestions.py late_remark": LATE,
    "odf_cli/embedded/doctor_checks.py _disk": SPACE,
    "odf_common/errors.py Damaged.advice": (
        f"{COORDINATOR}/test_modify.py::test_a_dataset_with_a_damaged_file_is_deleted_as_advised"
    ),
    "odf_coordinator/api/grpc_servicer.py unheard": COPIES,
    "odf_coordinator/catalog/chain_problems.py _lower": FUTURE,
    "odf_coordinator/catalog/chain_problems.py _reset": FUTURE,
    "odf_coordinator/catalog/chain_problems.py _roll_back": FUTURE,
    "odf_coordinator/catalog/chain_problems.py _uncommittable": (
        f"{COORDINATOR}/test_chain_problems.py"
        "::test_a_dataset_that_is_from_the_future_as_a_whole_can_only_be_deleted"
    ),
    "odf_coordinator/catalog/chain_problems.py query_remedy": f"{UPGRADE}::test_all_others_are_upgraded_at_once",
    "odf_coordinator/catalog/datasets.py HeadMissing.advice": REFS,
    "odf_coordinator/catalog/datasets.py ReferenceUnknown.advice": REFS,
    "odf_coordinator/errors.py InputDiverged.advice": FUTURE,
    "odf_common/ports/engine.py ResultsChanged.advice": (
        f"{UPGRADE}::test_an_upgraded_dataset_continues_from_its_state"
    ),
    "odf_coordinator/operations/query_problems.py _OTHER_QUERY": (
        f"{UPGRADE}::test_a_query_that_is_refused_is_replaced"
    ),
    "odf_engine_spark/server/identity.py Identity.require": f"{UPGRADE}::test_all_others_are_upgraded_at_once",
    "odf_engine_spark/transform/migration.py _check_repeated": (
        f"{UPGRADE}::test_rows_that_would_be_retracted_otherwise_are_derived_again"
    ),
    "odf_coordinator/operations/reset_and_commit.py DatasetEditor._require_unread": FUTURE,
    "odf_coordinator/operations/waiting.py Waiting._first_record": WAITS,
    "odf_coordinator/operations/waiting.py Waiting._remedy": WAITS,
    "odf_coordinator/operations/query_problems.py QueryProblems.problem": (
        f"{COORDINATOR}/test_declarations.py"
        "::test_a_preprocess_query_of_the_chain_stays_and_is_a_problem_of_the_dataset"
    ),
    "odf_coordinator/operations/drop_and_rebuild.py EngineGone.__str__": (
        f"{COORDINATOR}/test_dropping_engines.py::test_data_of_a_previous_engine_is_derived_again_as_advised"
    ),
    "odf_coordinator/operations/drop_and_rebuild.py InputsMissing.advice": (
        f"{COORDINATOR}/test_copies.py::test_inputs_that_are_missing_are_named"
    ),
    "odf_coordinator/storage.py CopyLost.__str__": COPIES,
    "odf_coordinator/storage.py DataDropped.__str__": LOST,
    "odf_coordinator/catalog/chain_problems.py CORRECT_ADVICE": (
        "tests/integration/test_queries_that_the_engine_refuses.py"
        "::test_it_is_not_checked_and_derived_no_further_and_status_says_why"
    ),
    "odf_coordinator/catalog/chain_problems.py CHANGE_ADVICE": FAILS,
    "odf_ingest/commit/slice_writer.py BLANK": REFUSED,
    "odf_ingest/errors.py CannotRetry.advice": REFUSED,
    "odf_ingest/errors.py NoTopic.advice": COPIES,
    "odf_ingest/errors.py QUICKER": (
        "services/ingest/tests/push/test_stuck_sources.py"
        "::test_a_source_whose_query_takes_too_long_stops_until_it_has_another"
    ),
    "odf_ingest/errors.py RESET": (
        "services/ingest/tests/push/test_resets_of_stopped_sources.py"
        "::test_a_source_whose_state_is_garbage_stops_once_and_continues_after_a_reset"
    ),
    "odf_ingest/errors.py RegistryUnavailable.advice": (
        "services/ingest/tests/push/test_registry_sources.py"
        "::test_a_source_whose_registry_has_moved_continues_with_its_new_address"
    ),
    "odf_ingest/errors.py SnapshotRetractsTooMuch.advice": REFUSED,
    "odf_ingest/errors.py SourceStopped.advice": STOPPED,
    "odf_ingest/errors.py SourceWaiting.advice": REFUSED,
    "odf_ingest/poll/poll_errors.py FileRefused.advice": (
        f"{SKIPPED}::test_a_refused_file_is_skipped_by_command_and_the_files_after_it_are_read"
    ),
    "odf_ingest/poll/poll_errors.py FileReplaced.advice": (
        f"{SKIPPED}::test_a_replaced_file_is_accepted_as_read_and_its_new_lines_follow"
    ),
    "odf_ingest/poll/poll_errors.py LastLineContinued.advice": (
        f"{SKIPPED}::test_a_line_that_has_become_longer_is_kept_as_it_was_and_the_lines_after_it_follow"
    ),
    "odf_ingest/poll/poll_errors.py NothingAtSource.advice": REFUSED,
    "odf_sync/access/account_resources.py DescribedByResource.advice": (
        "tests/integration/test_a_node_of_several_accounts.py"
        "::test_an_account_is_applied_and_logs_in_with_the_password_of_its_manifest"
    ),
    "odf_sync/repositories/smart_dataset.py NotPushable.advice": (
        "services/sync/tests/test_named_places.py::test_a_url_that_cannot_be_pushed_to_names_the_one_that_can"
    ),
    "odf_sync/transfer/remote_chain.py ChainsDiverged.advice": COPIES,
    "odf_sync/transfer/remote_chain.py LocalAhead.advice": COPIES,
    "odf_sync/transfer/local_copy.py HasAnotherName.advice": LOST,
    "odf_sync/transfer/push_source.py DataNotHere.advice": (
        "services/sync/tests/test_copies_without_data.py::test_another_node_takes_a_derivative_only_with_its_data"
    ),
    "odf_verifier/replay.py _advice": FUTURE,
    "odf_verifier/replay.py input_not_on_node": COPIES,
    "odf_verifier/replay.py with_advice": COPIES,
    "odf_verifier/replay.py without_dropped": LOST,
    "odf_verifier/replay.py Replay._run": LOST,
}
# Messages that name another command for what was asked, or a next step: no problem is to be gone after it.
INSTEAD: Final = frozenset(
    (
        "odf_cli/commands/ingest.py ingest_command",
        "odf_cli/commands/inspect.py _no_query",
        "odf_cli/commands/new.py _lateness",
        "odf_cli/commands/new.py new_command",
        "odf_cli/suggestions.py SYNONYMS",
        "odf_cli/visibility.py _say_private",
        "odf_cli/visibility.py say_if_private",
        "odf_common/identity/keys.py _NO_KEY",
        "odf_common/service/settings.py Settings",
        "odf_common/service/node_home.py TenancyChanged.advice",  # names what the command did before
        "odf_coordinator/api/grpc_servicer.py _remedy_of",  # the chain keeps them, whatever follows
        "odf_coordinator/api/grpc_servicer.py with_credentials",
        "odf_coordinator/definitions/declared_columns.py require_fetchable",
        "odf_coordinator/operations/reset_and_commit.py _WRITTEN_WHEN",
        "odf_cli/commands/source.py skip",
        "odf_ingest/poll/poll_errors.py FetchUnsupported.advice",
        "odf_ingest/prepare/debezium.py _TRUNCATED",  # what was truncated can be read again from its source only
        "odf_sync/http/authorization.py Authorizer._why",
        "odf_sync/http/ingest_routes.py IngestRoutes._require_size",
        "odf_sync/http/read_routes.py NO_QUERIES",
        "odf_sync/transfer/push_source.py PushDiverged.advice",
    )
)
METHODS: Final = {"MESSAGE": "__str__", "ADVICE": "advice"}  # that return these texts of a class
FIELD: Final = re.compile(r"\{[a-z_]+(![rs])?\}")
# Commands for another node, its owner or its user, and for starting this one.
ELSEWHERE: Final = frozenset(
    (
        "odf_common/adapters/kafka/topic_claims.py TopicsTaken.advice",
        "odf_common/adapters/repository_urls.py require_no_credentials",
        "odf_cli/commands/node.py NoLog.advice",
        "odf_common/adapters/socket_users.py ServerOfAnotherUser.advice",
        "odf_cli/embedded/doctor_checks.py _home",
        "odf_cli/embedded/doctor_checks.py _node",
        "odf_cli/embedded/node_file.py ADVICE",
        "odf_cli/embedded/parts/tcp_ports.py PortTaken.advice",
        "odf_cli/embedded/supervisor.py AlreadyRunning.advice",
        "odf_common/service/node_home.py HomeCopied.advice",
        "odf_sync/http/resource_routes.py ResourceRoutes.subject_of",
        "odf_sync/access/remote_login.py AccessForbidden.advice",
        "odf_sync/access/remote_login.py _login_at",
        "odf_sync/transfer/local_copy.py NotPrivateThere.advice",
        "odf_sync/transfer/push_source.py AnotherVisibility.advice",
        "odf_sync/transfer/push_source.py NoPlaceThere.advice",
        "odf_verifier/replay.py _CHANGED",  # tested above, by the problem of the same query
        "odf_verifier/replay.py _REFUSED",
    )
)


@cache
def messages() -> tuple[tuple[str, str], ...]:
    """Return (place, command) of each command that a text of the product names; docstrings are no messages."""
    return tuple(
        (f"{module.relative_to(ROOT).as_posix().split('/', 2)[2]} {place}", command)
        for module in MODULES
        for place, command in _commands(ast.parse(module.read_text("utf-8")), ())
    )


def _commands(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring
        inside = names
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inside = (*names, child.name)
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            target = ast.unparse(child.targets[0] if isinstance(child, ast.Assign) else child.target)
            inside = (*names, METHODS[target]) if names and target in METHODS else names or (target,)
        text = _text_of(child)
        if text is None:
            yield from _commands(child, inside)
        else:
            for quoted, whole in NAMED.findall(text):
                yield ".".join(inside), quoted or whole


def _text_of(node: ast.AST) -> str | None:
    """Return a string of the code, with x for what an f-string or a template inserts."""
    match node:
        case ast.Constant(value=str(text)):
            return FIELD.sub("x", text)
        case ast.JoinedStr(values=values):
            return "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in values)
        case _:
            return None


def name_of(command: str) -> str:
    """Return the words of a command before its arguments."""
    found = WORDS.match(command)
    words = found[1].split() if found else []
    return " ".join(words[: 2 if words[:1] and words[0] in GROUPS else 1])


def test_every_command_that_a_message_names_exists_with_its_options() -> None:
    wrong = [(place, command, why) for place, command in messages() if (why := problem(command)) is not None]
    assert wrong == []


def test_every_message_that_names_a_command_has_a_row() -> None:
    rows = [*FOLLOWED, *INSTEAD, *ELSEWHERE]
    assert len(rows) == len(set(rows)), "a message has one row"
    assert {place for place, command in messages() if name_of(command) not in SHOW} == set(rows)


def test_the_test_of_a_row_exists_and_speaks_of_its_command() -> None:
    for place, test in FOLLOWED.items():
        file, _, name = test.partition("::")
        bodies = {
            node.name: ast.unparse(node)
            for node in ast.parse((ROOT / file).read_text("utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }
        assert name in bodies, test
        named = {name_of(command) for at, command in messages() if at == place} - SHOW
        assert any(all(word in bodies[name] for word in command.split()) for command in named), (place, named)
