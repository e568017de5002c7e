"""The gRPC service of the verifier."""

from collections.abc import Iterator

import grpc

from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import OdfError
from odf_common.proto.odf.node.v1 import verifier_pb2 as pb
from odf_common.proto.odf.node.v1 import verifier_pb2_grpc
from odf_verifier.targets import Problem, Target, targets
from odf_verifier.verification import Verdict, VerificationOptions, VerificationProgress, Verifier


def register(server: grpc.Server, datasets: NodeDatasets, verifier: Verifier) -> tuple[str, ...]:
    """Add the service to a server; return the names of the gRPC services."""
    verifier_pb2_grpc.add_VerifierServicer_to_server(Servicer(datasets, verifier), server)
    return (pb.DESCRIPTOR.services_by_name["Verifier"].full_name,)


class Servicer(verifier_pb2_grpc.VerifierServicer):
    """Serves `Verify`."""

    def __init__(self, datasets: NodeDatasets, verifier: Verifier) -> None:
        self._datasets = datasets
        self._verifier = verifier

    def Verify(self, request: pb.VerifyRequest, context: grpc.ServicerContext) -> Iterator[pb.VerifyItem]:
        """Verify datasets one after another, and yield the progress. The last item of each dataset is its verdict."""
        options = VerificationOptions(replay=not request.integrity_only, incremental=request.incremental)
        for target in targets(
            self._datasets, tuple(request.refs), every=request.all, recursive=request.recursive
        ):
            yield from self._verify(target, options, context)

    def _verify(
        self, target: Target, options: VerificationOptions, context: grpc.ServicerContext
    ) -> Iterator[pb.VerifyItem]:
        try:
            for item in self._verifier.verify(target, options):
                if not context.is_active():
                    return
                yield _message(target, item)
        except OdfError as error:
            # Not a verdict: something that is needed for one is not available.
            failed = pb.Verdict(
                dataset=target.name, verdict="failed", problems=[pb.Problem(kind=error.code, text=str(error))]
            )
            yield pb.VerifyItem(verdict=failed)


def _message(target: Target, item: VerificationProgress | Verdict) -> pb.VerifyItem:
    if isinstance(item, VerificationProgress):
        step = pb.VerifyProgress(dataset=target.name, phase=item.phase, done=item.done, total=item.total)
        return pb.VerifyItem(progress=step)
    verdict = pb.Verdict(
        dataset=target.name,
        verdict=item.word,
        problems=[_problem(problem) for problem in item.problems],
        blocks=item.tally.blocks,
        bytes=item.tally.bytes,
        transforms_replayed=item.tally.transforms,
    )
    return pb.VerifyItem(verdict=verdict)


def _problem(problem: Problem) -> pb.Problem:
    return pb.Problem(
        kind=problem.kind,
        block="" if problem.block is None else str(problem.block),
        sequence_number=problem.sequence_number,
        object="" if problem.object is None else str(problem.object),
        text=problem.text,
    )
