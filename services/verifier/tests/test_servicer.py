"""What a request makes the verifier check, and how its verdicts are returned."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Final, cast

import grpc
import pytest
from odf_testing.builders import a_chain, a_dataset, a_hash, a_seed
from odf_testing.verifier import Story

from odf_common.proto.odf.node.v1 import verifier_pb2 as pb
from odf_verifier.grpc_servicer import Servicer, register
from odf_verifier.targets import Damage, Problem, Tally, Target
from odf_verifier.verification import Verdict, VerificationOptions, VerificationProgress, Verifier

STEP: Final = VerificationProgress(phase="integrity", done=1, total=2)
VALID: Final = Verdict(head=None, problems=(), tally=Tally())


class Judge(Verifier):
    """Records its requests, and yields one step and the verdict."""

    def __init__(self, story: Story, verdict: Verdict = VALID) -> None:
        super().__init__(story.datasets, story.engine, story.home)
        self.asked: list[tuple[str, VerificationOptions]] = []
        self.given = 0
        self._verdict = verdict

    def verify(
        self, target: Target, options: VerificationOptions
    ) -> Iterator[VerificationProgress | Verdict]:
        self.asked.append((target.name, options))
        for item in (STEP, self._verdict):
            self.given += 1
            yield item


@pytest.fixture
def story() -> Story:
    made = Story()
    for name in ("cities", "towns"):
        made.put(a_chain(a_seed(dataset=a_dataset(name))), name=name)
    return made


def answers(story: Story, judge: Judge, *, is_active: bool = True, **request: Any) -> list[pb.VerifyItem]:
    caller = cast("Any", SimpleNamespace(is_active=lambda: is_active))
    return list(Servicer(story.datasets, judge).Verify(pb.VerifyRequest(**request), caller))


@pytest.mark.parametrize("integrity_only", [False, True])
@pytest.mark.parametrize("incremental", [False, True])
def test_a_request_says_what_is_verified(story: Story, *, integrity_only: bool, incremental: bool) -> None:
    judge = Judge(story)
    answers(story, judge, refs=["towns"], integrity_only=integrity_only, incremental=incremental)
    assert judge.asked == [("towns", VerificationOptions(replay=not integrity_only, incremental=incremental))]


def test_a_verdict_has_its_counts_and_the_place_of_each_problem(story: Story) -> None:
    lost = Problem(
        kind=Damage.OBJECT_MISSING,
        block=a_hash(1),
        sequence_number=7,
        object=a_hash(2),
        text="missing in data",
    )
    problems = (lost, Problem(kind=Damage.INPUT_DIVERGED, text="reset"))
    verdict = Verdict(head=None, problems=problems, tally=Tally(blocks=3, bytes=5, transforms=2))

    step, answer = answers(story, Judge(story, verdict), refs=["towns"])

    assert step.progress == pb.VerifyProgress(dataset="towns", phase="integrity", done=1, total=2)
    assert answer.verdict == pb.Verdict(
        dataset="towns",
        verdict="invalid",
        problems=[
            pb.Problem(
                kind="object-missing",
                block=str(a_hash(1)),
                sequence_number=7,
                object=str(a_hash(2)),
                text="missing in data",
            ),
            pb.Problem(kind="input-diverged", text="reset"),
        ],
        blocks=3,
        bytes=5,
        transforms_replayed=2,
    )


def test_a_verification_ends_when_its_caller_has_gone(story: Story) -> None:
    judge = Judge(story)
    assert answers(story, judge, all=True, is_active=False) == []
    assert judge.given == 2, "the first step of each dataset, and no more"


def test_health_is_reported_for_the_service_that_is_registered(story: Story) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    assert register(server, story.datasets, Judge(story)) == ("odf.node.v1.Verifier",)
