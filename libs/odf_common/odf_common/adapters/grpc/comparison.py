"""The comparison of two chains as a gRPC reply."""

from odf_common.chain.compare_chains import Ahead, Behind, Comparison, Diverged, Equal
from odf_common.hashing.multihash import Multihash
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire


def encode_comparison(relation: Comparison, common: Multihash | None) -> wire.Comparison:
    """Return the comparison of a left with a right chain; `common` is their last common block."""
    last = "" if common is None else str(common)
    match relation:
        case Equal():
            return wire.Comparison(relation="equal", common=last)
        case Ahead(blocks=blocks):
            return wire.Comparison(relation="ahead", left=blocks, common=last)
        case Behind(blocks=blocks):
            return wire.Comparison(relation="behind", right=blocks, common=last)
        case Diverged(ours=ours, theirs=theirs):
            return wire.Comparison(relation="diverged", left=ours, right=theirs, common=last)
