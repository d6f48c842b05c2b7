"""Takes passwords, keys and tokens out of everything that is stored, shown or logged.

An address keeps what it needs to be used again, with the secret in the environment or in ``~/.pgpass``: user, host,
path and the other parameters. Elsewhere a secret becomes ``***``.
"""

import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ray_backfill.core.job import as_line

HIDDEN = "***"
# Shorter ones would hide words of messages. They are hidden in addresses and behind a name.
_SHORTEST = 4
_LONG_NAMES = "password|passwd|passphrase|secret|credential|signature|access[_-]?key|api[_-]?key"
_PARAMETER = re.compile(rf"(?i).*({_LONG_NAMES}|token).*|key|pw|pwd|pass|sig|auth|external_id")
_NAME = rf"[\w-]*(?:{_LONG_NAMES})[\w-]*|[\w-]*token|pwd?"
_SCHEME = r"\b([A-Za-z][A-Za-z0-9+.-]*)://"
_ADDRESS = re.compile(rf"{_SCHEME}(\S+)")
_WHOLE = rf"{_SCHEME}(.+?)(?=#\s*(?i:select|with)\s|\Z)"  # a query is no part of the address
_BUCKETS = ("s3", "gs")  # no key has an @, but a path may
# password=word, password = 'two words': libpq's strings, and variables of the environment. Not folders: key=5/part.
_ASSIGNED = re.compile(rf"""(?i)(?<![\w/-])({_NAME})(\s*=\s*)('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s'"]\S*)""")
# 'password': 'word', as in a dictionary.
_QUOTED = re.compile(rf"""(?i)(['"])({_NAME})\1(\s*:\s*)(['"])(?:\\.|(?!\4).)*\4""")
_HEADER = re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer\s+|basic\s+)?)[^\s'\",}]+")

# Libraries quote a password without its address. What this process was given: address -> what it is without secrets,
# and the secrets themselves.
_addresses: dict[str, str] = {}
_values: set[str] = set()


def learn(given: str) -> str:
    """Learn the secrets of an argument, which may hold spaces and quotes; returns it without them."""
    found = re.search(_WHOLE, given, re.DOTALL)
    if found:
        address, secrets = _taken_apart(found[1], found[2])
        if secrets:
            _addresses[found[0]] = address
            _note(secrets, address)
    else:
        _note([assigned[3].strip("'\"") for assigned in _ASSIGNED.finditer(given)], "")
    return _cleaned_text(given)


def learn_value(secret: str) -> None:
    """Learn a secret that stands alone, such as a key from the environment."""
    if secret:
        _values.add(secret)


def without_secrets(text: str) -> str:
    """A message without secrets, also those that stand alone."""
    text = cleaned(text)
    for value in sorted(_values, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", HIDDEN, text)
    return text


def cleaned(value: Any) -> Any:
    """Plain data (texts, lists, dictionaries, ...) whose texts have no secrets.

    A word that equals a password is not hidden: it may be a name that is needed, such as that of a distance.
    """
    if isinstance(value, str):
        return _cleaned_text(value)
    if isinstance(value, dict):
        return {key: cleaned(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def needs_encoding(address: str) -> bool:
    """Whether user or password hold characters that would end them, so that libraries quote the rest in errors."""
    found = re.search(_WHOLE, address, re.DOTALL)
    return bool(found and re.search(r"[/?#@\s]", _access(found[1], found[2])[0]))


def hide_in_process_list() -> None:
    """Take secrets out of what ``ps`` shows of this process, from which Ray also records the job. Linux only."""
    try:
        words = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        hidden = [os.fsencode(learn(os.fsdecode(word))) for word in words]
        if hidden == words:
            return
        import ctypes

        # Fields 48 and 49 of proc(5), the first of which after the name is the third.
        first, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
        size = end - first
        ctypes.memmove(first, b"\0".join(hidden)[: size - 1].ljust(size, b"\0"), size)
    except OSError:
        return


def hide_in_logs() -> None:
    """Hide secrets in what libraries log, and in the traceback of an error that ends this process or a thread."""
    make = logging.getLogRecordFactory()
    if make is not logging.LogRecord:  # done
        return

    def record(*args: Any, **more: Any) -> logging.LogRecord:
        made = make(*args, **more)
        try:
            made.msg, made.args = without_secrets(made.getMessage()), ()
        except (TypeError, ValueError):  # logging itself reports what cannot be formatted
            return made
        if made.exc_info:
            made.exc_text = without_secrets("".join(traceback.format_exception(*made.exc_info)).rstrip())
        return made

    logging.setLogRecordFactory(record)
    sys.excepthook = lambda *error: _print_traceback(error)
    threading.excepthook = lambda thread: _print_traceback(thread[:3])


def hide_in_chain(error: BaseException | None) -> None:
    """Hide secrets in the messages of an error and of those that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # gRPC's errors are their own context
        seen.add(id(error))
        error.args = tuple(without_secrets(arg) if isinstance(arg, str) else arg for arg in error.args)
        error = error.__cause__ or error.__context__


def _print_traceback(error: Sequence[Any]) -> None:
    text = without_secrets("".join(traceback.format_exception(*error))).rstrip()
    print(as_line(text, "error"), file=sys.stderr)


def _cleaned_text(text: str) -> str:
    for address in sorted(_addresses, key=len, reverse=True):
        text = text.replace(address, _addresses[address])
    text = _ADDRESS.sub(lambda found: _taken_apart(found[1], found[2])[0], text)
    text = _ASSIGNED.sub(rf"\1\2{HIDDEN}", text)
    text = _QUOTED.sub(rf"\1\2\1\3\4{HIDDEN}\4", text)
    return _HEADER.sub(rf"\1{HIDDEN}", text)


def _note(secrets: Sequence[str], address: str) -> None:
    """Learn secrets, also decoded, and their parts: a library takes one apart that should have been encoded.

    Not what stands in the address anyway: the user "shop" of the database "shop" with the password "shop".
    """
    # Of user:password also the password.
    forms = {form for secret in secrets for form in (secret, unquote(secret), secret.partition(":")[2])}
    parts = {part for form in forms for part in re.split(r"[/?#@\s]", form)}
    _values.update(word for word in forms | parts if len(word) >= _SHORTEST and word not in address)


def _taken_apart(scheme: str, rest: str) -> tuple[str, list[str]]:
    """An address without its secrets, and these. rest: what follows ``scheme://``."""
    access, place = _access(scheme, rest)
    user, _, password = access.partition(":")
    is_name = scheme.lower().startswith("postgres")  # elsewhere it may be a token
    secrets = [password] if is_name or (password and scheme.lower() not in _BUCKETS) else [user, password]
    kept = f"{user}@" if user and is_name else ""
    if "@" in password:
        kept, place = "", HIDDEN  # nobody knows where the password ends
    head, mark, query = place.partition("?")
    if mark:
        query, hash_, fragment = query.partition("#")
        named = [(part, *part.partition("=")[::2]) for part in re.split("[&;]", query)]
        hidden = [value for _, name, value in named if value and _PARAMETER.fullmatch(unquote(name))]
        if hidden:
            secrets += hidden
            query = "&".join(part for part, _, value in named if value not in hidden)
        place = head + (mark + query if query or not hidden else "") + hash_ + fragment
    return f"{scheme}://{kept}{place}", [secret for secret in secrets if secret]


def _access(scheme: str, rest: str) -> tuple[str, str]:
    """User and password, "" if there are none, and the rest of an address."""
    head = re.split(r"\?(?=[\w%.-]+=)", rest, maxsplit=1)[0]
    if "@" not in head and not re.match(r"\[|[^:/?#]*(?::\d*)?(?:[/?#]|$)", head):
        head = rest  # a bare ? in the password
    if head.startswith("[") or not re.match(r"[^@]*:[^@]*@|[^/?#@]*@", head):
        return "", rest
    at = head.index("@")
    if ":" in head[:at] and scheme.lower() not in _BUCKETS:
        at = head.rindex("@")
    return rest[:at], rest[at + 1 :]
