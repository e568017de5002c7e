from odf_testing.scheduling import ENGINE, INTEGRATION, chosen, mostly_waits, needs_shared_node

SHARED = f"{INTEGRATION}test_batches_do_not_matter.py"
OWN = f"{INTEGRATION}test_service_loop.py"
SPARK = f"{ENGINE}tests/test_kinds.py"
UNIT = "libs/odf_common/tests/chain/test_rules.py"
WAITING = "libs/odf_common/tests/adapters/test_kafka_records.py"
ALL = (OWN, SHARED, SPARK, UNIT)


def test_stories_with_a_separate_node_do_not_need_the_shared_one() -> None:
    assert needs_shared_node(SHARED)
    assert not needs_shared_node(OWN)


def test_two_processes_take_the_shared_node_and_the_last_takes_the_session() -> None:
    assert [chosen(ALL, process, 4) for process in range(4)] == [SHARED, SHARED, OWN, SPARK]


def test_a_process_without_files_of_its_kind_takes_any_others() -> None:
    assert chosen((SHARED, SPARK, OWN, UNIT), 2, 4) == OWN
    assert chosen((SHARED, UNIT), 3, 4) == UNIT


def test_files_that_mostly_wait_are_started_before_the_rest() -> None:
    assert mostly_waits(WAITING)
    assert not mostly_waits(UNIT)
    assert chosen((OWN, UNIT, WAITING), 2, 4) == WAITING
    assert chosen((SHARED, UNIT, WAITING), 0, 4) == SHARED


def test_nothing_waits_for_a_process_that_is_busy() -> None:
    assert chosen((SHARED, SPARK), 2, 4) == SPARK
    assert chosen((SHARED,), 3, 4) == SHARED


def test_one_process_takes_everything() -> None:
    waiting, taken = list(ALL), []
    while waiting:
        taken.append(chosen(waiting, 0, 1))
        waiting.remove(taken[-1])
    assert taken == [SHARED, SPARK, OWN, UNIT]
