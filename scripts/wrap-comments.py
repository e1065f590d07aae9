#!/usr/bin/env python3
"""Wraps comments that are longer than max_width in rustfmt.toml, which rustfmt by itself does not do.

    scripts/wrap-comments.py FILE.rs...            wraps them in place
    scripts/wrap-comments.py --check FILE.rs...    only names the lines; exit code 1 if there are any

Only whole-line comments are wrapped, from the first line that is too long to the end of its paragraph. Tables, headings and
code blocks are left alone.
"""

import pathlib
import re
import sys
import textwrap

COMMENT = re.compile(r"^(\s*)(//[/!]?)( ?)(.*)$")
ITEM = re.compile(r"^(\s*)([-*]|\d+\.) ")


def width():
    rustfmt = pathlib.Path(__file__).resolve().parent.parent / "rustfmt.toml"
    return int(re.search(r"max_width = (\d+)", rustfmt.read_text()).group(1))


def wrapped(lines, limit):
    out, at, fenced = [], 0, False
    while at < len(lines):
        match = COMMENT.match(lines[at])
        if match and match.group(4).lstrip().startswith("```"):
            fenced = not fenced
        if not match:
            fenced = False
        text = match.group(4) if match else ""
        special = ("|", "#", "```", "---")
        plain = match and match.group(3) and not fenced and text and not text.lstrip().startswith(special)
        if not plain or len(lines[at]) <= limit:
            out.append(lines[at])
            at += 1
            continue
        # The rest of the paragraph: lines of the same kind that begin nothing of their own.
        start = match.group(1) + match.group(2) + " "
        words, end = [text], at + 1
        while end < len(lines):
            more = COMMENT.match(lines[end])
            if not more or more.group(1, 2) != match.group(1, 2) or not more.group(4).strip():
                break
            if ITEM.match(more.group(4)) or more.group(4).lstrip().startswith(("|", "#", "```")):
                break
            words.append(more.group(4))
            end += 1
        item = ITEM.match(text)
        indent = " " * (item.end() if item else len(text) - len(text.lstrip()))
        joined = text.strip() + "".join(" " + word.strip() for word in words[1:])
        first = start + (item.group(1) if item else indent)
        broken = textwrap.wrap(
            joined, limit, initial_indent=first, subsequent_indent=start + indent,
            break_long_words=False, break_on_hyphens=False,
        )
        # A line must not begin like a list item.
        if any(ITEM.match(line[len(start):]) for line in broken[1:]):
            broken = textwrap.wrap(
                joined, limit - 4, initial_indent=first, subsequent_indent=start + indent,
                break_long_words=False, break_on_hyphens=False,
            )
        out += broken
        at = end
    return out


def main():
    check = sys.argv[1:2] == ["--check"]
    limit, found = width(), False
    for name in sys.argv[2 if check else 1 :]:
        path = pathlib.Path(name)
        lines = path.read_text().split("\n")
        if check:
            for number, line in enumerate(lines, 1):
                if len(line) > limit and COMMENT.match(line):
                    print(f"{name}:{number}: {len(line)} columns")
                    found = True
        else:
            path.write_text("\n".join(wrapped(lines, limit)))
    sys.exit(found)


if __name__ == "__main__":
    main()
