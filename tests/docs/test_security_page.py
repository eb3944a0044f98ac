"""Every test that SECURITY.md names is there."""

from __future__ import annotations

import re

from tests.process.scripts import ROOT


def test_tests_that_the_page_names_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`((?:unit|process|chaos)/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 10
    for file, test in named:
        assert f"def {test}" in (ROOT / "tests" / file).read_text()
