"""The comparison of two chains, as a gRPC message."""

from odf_common.chain.compare_chains import Ahead, Behind, Comparison, Diverged, Equal
from odf_common.hashing.multihash import Multihash
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire


def encode_comparison(relation: Comparison, common: Multihash | None) -> wire.Comparison:
    """Return the message for a comparison; `common` is the last block that both chains have."""
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
