"""The model of the metadata chain: events, their fragments, the block around them, and manifests.

The dataclasses are the single definition of the model: field order is FlatBuffers slot order, the order of a union's
members is their discriminator (1, 2, …), a field without a default is required. The codecs derive their three encodings
from it (spec: Metadata Reference; wire-facts §1).
"""
