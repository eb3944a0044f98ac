"""Which samples come when: pure functions of a frozen description, without processes or clocks."""

from .partition import Partition, Span, Tail
from .plan import JSON, Plan
from .state import Resume, capture, resume, saved_seed

__all__ = ["JSON", "Partition", "Plan", "Resume", "Span", "Tail", "capture", "resume", "saved_seed"]
