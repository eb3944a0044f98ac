"""Sixty-four well mixed bits from a few integers: the only source of randomness of a plan.

The finalizer is that of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014). numpy's ``Generator`` methods are not used on purpose: their streams may change
between numpy releases (NEP 19), and a saved run must go on in the same order after an upgrade.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """A fixed bijection on ``[0, 2**64)`` that spreads every input bit over all output bits."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def key64(purpose: int, *values: int) -> int:
    """Mix `values` (integers, taken modulo ``2**64``), in their order, into one of ``2**64`` keys.

    Keys of a different `purpose` are unrelated. Keys whose values differ in one place are distinct.
    """
    key = mix64(purpose)
    for value in values:
        key = mix64(((key ^ (value & _MASK)) + _GOLDEN) & _MASK)
    return key
