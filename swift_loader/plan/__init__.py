"""Which samples come when: pure functions of a frozen description, without processes or clocks."""

from .partition import Partition, Span, Tail
from .plan import FIELDS, JSON, Plan

__all__ = ["FIELDS", "JSON", "Partition", "Plan", "Span", "Tail"]
