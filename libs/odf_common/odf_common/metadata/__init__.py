"""The model of the metadata chain: events and their fragments, the block around an event, and manifests.

The model is defined only by these dataclasses: the order of fields is FlatBuffers slot order, the order of a union's
members gives their discriminators (1, 2, …), and a field without a default is required. The codecs derive all three
encodings from it (spec: Metadata Reference; wire-facts §1).
"""
