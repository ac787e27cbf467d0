"""Small tables in HTML, for notebooks: escaped, without scripts, in light and dark themes."""

from __future__ import annotations

from html import escape

_NOTE = "padding: 0 .6em; font-size: smaller"
# No colours but shades of the text's own, so that they fit any theme.
_LINE = "1px solid rgba(128, 128, 128, .5)"
_TABLE = (
    "color: inherit; border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .3em 0"
)
_CAPTION = (
    "caption-side: top; text-align: left; padding: .2em .6em; color: inherit; font-weight: bold"
)
_CELL = "padding: .15em .6em; background: transparent; color: inherit"


class Bold(str):
    """The text of a cell that is shown in bold."""


def table(caption, head, rows, *, notes=(), total=False):
    """Return an HTML table of a column of text and columns of numbers, with notes below it."""
    lines = [
        f'<table style="{_TABLE}">',
        f'<caption style="{_CAPTION}">{escape(caption)}</caption>',
    ]
    if head:
        lines += ["<thead>", _row("th", head, f"border-bottom: {_LINE}"), "</thead>"]
    lines.append("<tbody>")
    for number, row in enumerate(rows):
        last = total and number == len(rows) - 1
        lines.append(_row("td", row, f"border-top: {_LINE}" if last else "border: none"))
    lines += ["</tbody>", "</table>"]
    lines += [f'<div style="{_NOTE}">{escape(note)}</div>' for note in notes]
    return "\n".join(["<div>", *lines, "</div>"])


def _row(tag, cells, border):
    written = []
    for column, text in enumerate(cells):
        align = "left" if column == 0 else "right"
        shown = escape(text)
        if isinstance(text, Bold):
            shown = f"<strong>{shown}</strong>"
        written.append(f'<{tag} style="{_CELL}; text-align: {align}; {border}">{shown}</{tag}>')
    return f"<tr>{''.join(written)}</tr>"
