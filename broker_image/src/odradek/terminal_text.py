"""What commands show on a terminal: names and messages of strangers, which must not steer it.

Names of groups, clients and headers may be any text, and what a peer says may be, too: an escape
sequence would clear the screen, and a newline would look like another line of the command's own.
"""

from __future__ import annotations

import json

import click


def plain(text: str) -> str:
    """Return a text as one line: what does not print, but for blanks, is shown as its escape."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "replace").decode()
        for one in text
    )


def plain_json(document: str) -> str:
    r"""Return a JSON document with the same meaning, and what does not print as `\u` escapes.

    Newlines stay: those of strings are escapes already.
    """
    if document.isprintable():
        return document
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in document
    )


def tell(message: object) -> None:
    """Tell the user one line on stderr, as all commands do beside what they print."""
    click.echo(f"odradek: {plain(str(message))}", err=True)
