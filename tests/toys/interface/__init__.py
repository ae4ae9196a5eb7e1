"""An interface without a standard: it counts the triples of a subject.

api: the path and its answer.
"""

from lamplighter.gateway.gates.toy.api import Toy

__all__ = ["Toy"]
