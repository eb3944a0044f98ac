"""Sharing workers: by need, everybody at least one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swift_loader.remote.shares import shares
from swift_loader.remote.versions import here, what_differs


@given(st.dictionaries(st.integers(), st.booleans(), max_size=20), st.integers(1, 40))
def test_shares_are_even_over_those_in_need_and_within_the_bound(
    needs: dict[int, bool], workers: int
) -> None:
    given_ = shares(needs, workers)
    assert given_.keys() == needs.keys()
    assert all(share >= 1 for share in given_.values())
    assert sum(given_.values()) == (max(workers, len(needs)) if needs else 0)
    in_need = [given_[s] for s, need in needs.items() if need] or list(given_.values())
    assert not in_need or max(in_need) - min(in_need) <= 1
    if any(needs.values()):
        assert all(given_[s] == 1 for s, need in needs.items() if not need)


def test_same_versions_work_together() -> None:
    assert what_differs(here(), here()) == ""
    local = here()["torch"].partition("+")[0] + "+cu126"
    assert what_differs(here(), {**here(), "torch": local}) == ""


def test_versions_that_do_not_work_together_are_named() -> None:
    told = what_differs(here(), {**here(), "python": "2.7.18", "torch": "1.13.1"})
    assert "python" in told
    assert "2.7.18" in told
    assert "1.13.1" in told
    assert "numpy" not in told
    assert "byte order" in what_differs(here(), {})
