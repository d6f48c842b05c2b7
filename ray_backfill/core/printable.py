"""Texts of users as terminals and pages can show them: no character in them is obeyed, and none breaks a page."""

import re
from collections.abc import Mapping
from typing import Any

# What a terminal obeys, what turns the direction of the text around it, and what XML or UTF-8 cannot hold.
_HARMFUL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """The text with ``\\x1b`` in place of an escape character, and so on. Line breaks and tabs stay."""
    return _HARMFUL.sub(_escaped, text)


def printable_in(value: Any) -> Any:
    """Plain data as it is read from JSON, with all of its texts ``printable``."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_in(key): printable_in(inner) for key, inner in value.items()}
    return [printable_in(item) for item in value] if isinstance(value, list) else value


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
