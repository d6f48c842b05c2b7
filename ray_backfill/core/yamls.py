"""Files of settings in YAML, read strictly into frozen dataclasses."""

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ray_backfill.core.errors import InputError, unknown_name

SettingsT = TypeVar("SettingsT")


def read_yaml(file: Path, kind: type[SettingsT], option: str, positive: Collection[str] = ()) -> SettingsT:
    """Read a file into a dataclass of settings, whose fields may be dataclasses and tuples. Paths are relative to it.

    option: that names the file, for messages. positive: numbers that must be greater than 0; others may be 0.

    Raises:
        InputError: The file cannot be read, has an unknown key, lacks one, or a value is impossible.
    """
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is a date that no calendar has
        place = getattr(error, "problem_mark", None)
        at = f", line {place.line + 1}" if place else ""
        why = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise InputError(f"{file}{at} is not YAML: {why}") from error
    settings: SettingsT = _read(kind, {} if content is None else content, "", file, positive)
    return settings


def _read(kind: Any, content: Any, where: str, file: Path, positive: Collection[str]) -> Any:
    """A dataclass of the settings from a mapping. where: its place in the file, for messages."""
    if not isinstance(content, Mapping):
        raise InputError(f"{file}: {where or 'the file'} must hold keys and values, not {content!r}")
    hints, known = get_type_hints(kind), [setting.name for setting in fields(kind)]
    values = {}
    for key, value in content.items():
        if key not in known:
            raise InputError(f"{file}: {unknown_name(f'key of {where}' if where else 'key', str(key), known)}")
        values[key] = _value(hints[key], value, f"{where}.{key}" if where else key, file, positive)
    for setting in fields(kind):
        if setting.name not in values and setting.default is MISSING and setting.default_factory is MISSING:
            raise InputError(f"{file}: {where or 'the file'} lacks {setting.name}")
    return kind(**values)


def _value(hint: Any, value: Any, where: str, file: Path, positive: Collection[str]) -> Any:
    choices = [inner for inner in get_args(hint) if inner is not type(None)] or [hint]
    if get_origin(hint) is tuple:
        values = value if isinstance(value, list) else [value]
        return tuple(_value(choices[0], one, f"{where}[{place}]", file, positive) for place, one in enumerate(values))
    # Of a choice between settings and a plain value, the one that the value looks like.
    kind = next((one for one in choices if is_dataclass(one) == isinstance(value, Mapping)), choices[0])
    if is_dataclass(kind):
        return _read(kind, value, where, file, positive)
    if kind is datetime:
        try:
            return local_time(str(value))
        except ValueError:
            wants = "a date such as 2026-12-01 08:00, as a local time without a zone"
            raise InputError(f"{file}: {where} is {wants}, not {value!r}") from None
    if kind is Path:
        path = file.parent / str(value)
        if not path.exists():
            raise InputError(f"{file}: {where}: there is no {path}")
        return path
    if kind in (int, float):
        try:
            number = as_number(value, where.split(".")[-1] in positive)
            if kind is int and number != int(number):
                raise ValueError("a whole number")
        except ValueError as error:
            raise InputError(f"{file}: {where} must be {error}, not {value!r}") from None
        return kind(number)
    if not isinstance(value, kind):
        words = {str: "a text", bool: "true or false"}
        raise InputError(f"{file}: {where} must be {words[kind]}, not {value!r}")
    return value


def local_time(text: str) -> datetime:
    """The time of a text or of a YAML date. Raises ValueError if it is none, or has a zone."""
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo:
        raise ValueError("a zone")
    return moment


def as_number(value: Any, is_positive: bool) -> float:
    """A finite number from 0 on, or above it. Raises ValueError, which says what number it must be."""
    try:
        number = float(str(value).replace("_", "")) if not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not (number > 0 if is_positive else number >= 0) or math.isinf(number):
        raise ValueError(f"a number {'greater than 0' if is_positive else '0 or more'}")
    return number
