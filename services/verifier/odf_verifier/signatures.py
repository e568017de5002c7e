"""Checks that stored signatures are valid for their blocks; a block without one is fine (docs/formats/signature.md)."""

from collections.abc import Iterable, Iterator

from odf_common.dataset.signature_check import (
    SignatureCheck,
    SignatureStatus,
    check_signature,
    stored_signature,
)
from odf_common.errors import Damaged
from odf_common.ports.store import ObjectKind
from odf_verifier.integrity import Link
from odf_verifier.report import Damage, Problem
from odf_verifier.targets import Target


def check_signatures(target: Target, links: Iterable[Link]) -> Iterator[Problem]:
    """Yield a problem for each block with an invalid signature, in chain order."""
    for link in links:
        checked = _check(target, link)
        if checked.status is SignatureStatus.INVALID:
            claimed = f", claimed by {checked.signer}" if checked.signer else ""
            text = f"{ObjectKind.SIGNATURE}/{link.hash}: {checked.fault}{claimed}"
            yield link.problem(Damage.SIGNATURE_INVALID, text, link.hash)


def _check(target: Target, link: Link) -> SignatureCheck:
    try:
        return check_signature(link.hash, stored_signature(target.reader, link.hash))
    except Damaged as error:
        return SignatureCheck(status=SignatureStatus.INVALID, fault=error.why)
