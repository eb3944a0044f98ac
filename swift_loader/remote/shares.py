"""How an endpoint's workers are shared by the sessions that need them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["shares"]


def shares(needs: Mapping[int, bool], workers: int) -> dict[int, int]:
    """Workers a session: as evenly as it goes over those in need, the earlier ones first.

    Where nobody is in need, over all: they keep them ready.
    Everybody has at least one, so that no training stands still; that is the only way in which
    there can be more than `workers` of them.

    >>> shares({1: True, 2: False, 3: True}, 8)
    {1: 4, 2: 1, 3: 3}
    """
    given = dict.fromkeys(needs, 1)
    in_need = [session for session, need in needs.items() if need] or list(needs)
    left = workers - len(given)
    while left > 0 and in_need:
        for session in in_need[:left]:
            given[session] += 1
        left -= len(in_need)
    return given
