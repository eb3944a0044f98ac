"""The documentation's table of differences is the suite's list."""

from __future__ import annotations

from tests.differential.differences import PAGE, on_page, table


def test_the_page_has_the_list_of_known_differences() -> None:
    assert on_page(PAGE.read_text()) == table(), "python -m tests.differential.differences"
