"""The one error that users meet: what they gave cannot be used."""


def printable(text: str) -> str:
    """One line without control characters, which names in logs and results may have and which a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


class Unusable(Exception):
    """The data or the files that were given cannot be used. The message is one line that says what is wrong and what to do."""

    def __str__(self) -> str:
        # Names of files and texts from results may contain line breaks. The message stays one line all the same.
        return printable(super().__str__())
