"""Interfaces through which the node's core uses the outside world, as Protocols.

Adapters implement them, and tests define their contracts.
"""
