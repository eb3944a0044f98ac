"""Stats as a notebook shows them: small tables, without colours of their own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from swift_loader.telemetry.printable import printable

__all__ = ["cells", "table"]


def cells(row: Sequence[object], tag: str = "td") -> str:
    """One row. What users name is shown, and obeyed by nobody."""
    inner = "".join(
        f'<{tag} style="text-align:left">{escape(printable(cell, 500))}</{tag}>' for cell in row
    )
    return f"<tr>{inner}</tr>"


def table(title: str, text: str, rows: Sequence[Sequence[object]]) -> str:
    """A heading, a sentence, and a table, head first."""
    head, *body = rows
    return (
        f"<div><strong>{escape(printable(title))}</strong>"
        f"<p>{escape(printable(text, 1000))}</p><table><thead>{cells(head, 'th')}</thead>"
        f"<tbody>{''.join(map(cells, body))}</tbody></table></div>"
    )
