"""Texts of records on a terminal."""


def plain(text: str) -> str:
    """Return the text with its control characters as escapes: a value cannot steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "replace").decode()
        for one in text
    )
