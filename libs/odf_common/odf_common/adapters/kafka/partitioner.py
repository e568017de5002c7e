"""The partition of a key, as in Kafka's own clients and librdkafka's `murmur2_random`."""

from typing import Final

from odf_common.ports.bus import PARTITIONS

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of the key, unsigned."""
    value = _SEED ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    if whole < len(key):
        value = (value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int = PARTITIONS) -> int:
    """Return the partition that a record with this key is written to."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
