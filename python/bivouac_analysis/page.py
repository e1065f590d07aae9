"""A report as one HTML page that needs nothing else: its style and its figures are inside.

All text is escaped, because names and errors in results come from others.
"""

import base64
import os
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from .errors import Unusable
from .tables import Table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h3 { font-size: 1rem; margin-bottom: 0; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: 0.85rem; margin: 0.5rem 0 1rem; display: block; overflow-x: auto; }
caption { text-align: left; color: #444; padding-bottom: 0.3rem; }
th, td { padding: 0.2rem 0.6rem; border-bottom: 1px solid #e3e3e3; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; } td.long { white-space: normal; min-width: 16rem; }
th { background: #f3f3f3; vertical-align: bottom; white-space: normal; }
figure { margin: 1rem 0; } figure img { max-width: 100%; } figcaption { color: #444; font-size: 0.85rem; }
.warning { background: #fff4d6; border-left: 4px solid #d9a400; padding: 0.4rem 0.8rem; margin: 0.5rem 0; }
nav { font-size: 0.9rem; }
"""


@dataclass
class Page:
    """A report that is being put together, from top to bottom."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _sections: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        """Begins a section."""
        self._sections.append(title)
        self._parts.append(f'<h2 id="s{len(self._sections)}">{escape(title)}</h2>')

    def heading(self, title: str) -> None:
        """Adds a heading inside of a section."""
        self._parts.append(f"<h3>{escape(title)}</h3>")

    def say(self, *paragraphs: str) -> None:
        """Adds paragraphs."""
        self._parts += [f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs]

    def points(self, sentences: list[str]) -> None:
        """Adds sentences as a list."""
        if sentences:
            self._parts.append("<ul>" + "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>")

    def warn(self, *sentences: str) -> None:
        """Adds sentences that a reader must not miss."""
        self._parts += [f'<div class="warning">{escape(sentence)}</div>' for sentence in sentences]

    def table(self, table: Table) -> None:
        """Adds a table."""
        head = "".join(f"<th>{escape(table.title(str(column)))}</th>" for column in table.frame.columns)
        rows = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.cells()]
        self._parts.append(
            f"<table><caption>{escape(table.caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>"
            + "\n".join(rows)
            + "</tbody></table>"
        )

    def figure(self, svg: str, caption: str) -> None:
        """Adds a figure. Each is an image of its own, so that identifiers inside of two figures never meet."""
        data = base64.b64encode(svg.encode()).decode()
        words = escape(caption, quote=True)
        self._parts.append(
            f'<figure><img alt="{words}" src="data:image/svg+xml;base64,{data}"><figcaption>{words}</figcaption></figure>'
        )

    def html(self) -> str:
        """The whole page."""
        contents = " · ".join(f'<a href="#s{at}">{escape(title)}</a>' for at, title in enumerate(self._sections, 1))
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n<body><h1>{escape(self.title)}</h1>\n'
            f"<nav>{contents}</nav>\n" + "\n".join(self._parts) + "\n</body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Writes the page. A reader never sees half of it, and an older report stays if this one cannot be written.

        For this, the page is written beside the file and renamed. What is no file, such as `/dev/stdout` or a pipe, is written to instead:
        it must not be replaced. Where a symbolic link leads to a file, that file is replaced, and not the link.
        """
        target = Path(os.path.realpath(path))
        renamed = os.path.isfile(target) or not os.path.exists(path)
        part = target.with_name(f".bivouac-{os.getpid()}.part") if renamed else path
        try:
            part.write_text(self.html(), encoding="utf-8", errors="replace")
            if renamed:
                part.replace(target)
        except OSError as error:
            if renamed:
                with suppress(OSError):
                    part.unlink()
            raise Unusable(f"cannot write {path}: {error.strerror or error}: name a file in a directory that is there") from error


def _cell(text: str) -> str:
    kind = ' class="long text"' if len(text) > 40 else ""
    return f"<td{kind}>{escape(text)}</td>"
