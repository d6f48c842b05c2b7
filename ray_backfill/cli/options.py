"""The options of a command, made from the dataclass of its settings: reading a command line, and help for options."""

import difflib
import inspect
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import GenericAlias, NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import cyclopts
import docstring_parser

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import path_of

# Default of a setting that the command line must give.
REQUIRED: Any = MISSING

# Settings within settings are a group of options, such as --heads.lr. The options of these have no prefix.
_WITHOUT_PREFIX = {"settings", "fits", "evaluation", "place", "experiment", "columns"}

# Type -> what help writes for a value.
_PLACEHOLDERS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}


@dataclass(frozen=True)
class Option:
    """A setting as an option.

    path: the fields that lead to it. owners: the dataclass of each. kind: type of one value.
    """

    path: tuple[str, ...]
    owners: tuple[type, ...]
    kind: Any
    default: Any
    is_list: bool
    may_be_none: bool
    is_positional: bool

    @property
    def group(self) -> str:
        """The prefix: "heads.loss" for --heads.loss.tau, "" if there is none."""
        return _prefix(self.path[:-1])

    def name(self, sign: str = "") -> str:
        """The option as it is typed. sign: "no-" for the option that turns a flag off."""
        return f"--{self.group}{'.' * bool(self.group)}{sign}{self.path[-1].replace('_', '-')}"

    @property
    def usage(self) -> str:
        """The option and its values, as help writes them."""
        if self.kind is bool:
            return f"{self.name()}, {self.name('no-')}"
        choices = get_args(self.kind)
        value = f"{{{','.join(choices)}}}" if choices else _PLACEHOLDERS[self.kind]
        value = f"[{value} [{value} ...]]" if self.is_list else f"{'{None}|' * self.may_be_none}{value}"
        return value if self.is_positional else f"{self.name()} {value}"

    @property
    def text(self) -> str:
        """The docstring of the setting."""
        return _texts_of(self.owners[-1]).get(self.path[-1], "")

    def help(self) -> str:
        """Help on the option. A default that is empty or None is not shown: the text says what it means."""
        default = " ".join(map(str, self.default)) if self.is_list else str(self.default)
        note = f"(default: {default})" if default and self.default is not None else ""
        note = "(required)" if self.default is REQUIRED else note
        return f"{_wrapped(self.usage, '  ')}\n{_wrapped(f'{self.text} {note}', ' ' * 8)}"

    def group_help(self) -> str:
        """Help on its group: the docstring of the group's field, otherwise that of the dataclass."""
        place = max(place for place, name in enumerate(self.path[:-1]) if name not in _WITHOUT_PREFIX)
        text = _texts_of(self.owners[place]).get(self.path[place]) or inspect.getdoc(self.owners[place + 1])
        return f"{_wrapped(text or '', '  ')}\n  {'-' * 78}"

    def parameter(self, name: str) -> inspect.Parameter:
        """The option as a parameter of a function, from which cyclopts makes it. name: name of the parameter."""
        kind = inspect.Parameter.POSITIONAL_ONLY if self.is_positional else inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if self.default is REQUIRED else self.default
        how = cyclopts.Parameter(
            name=None if self.is_positional else self.name(),
            negative=self.name("no-") if self.kind is bool else (),
            converter=self.value,
            consume_multiple=self.is_list,
            allow_repeating=True,
        )
        # Exact, because cyclopts has pydantic check values and defaults once something else has loaded it.
        value = GenericAlias(tuple, (self.kind, ...)) if self.is_list else self.kind
        value = value | None if self.may_be_none else value
        return inspect.Parameter(name, kind, default=default, annotation=Annotated[value, how])

    def value(self, tokens: Sequence[cyclopts.Token]) -> Any:
        """The value of the words after the option; of the last ones, if it is given more than once."""
        start = max(place for place, token in enumerate(tokens) if not token.index)
        values = [self._value(token.value) for token in tokens[start:]]
        return tuple(values) if self.is_list else values[0]

    def _value(self, word: str) -> Any:
        name, choices = self.usage if self.is_positional else self.name(), get_args(self.kind)
        if self.may_be_none and word == "None":
            return None
        if choices and word not in choices:
            raise InputError(f"invalid choice {word!r} for argument '{name}'; choose from {', '.join(choices)}")
        if self.kind is Path and not word:
            raise InputError(f"{name} is empty; give a folder{' or a file' * self.may_be_none}")
        if self.kind is Path or self.path[-1] == "root":  # the folder of the images
            path_of(word)
        try:
            return word if choices else path_of(word) if self.kind is Path else self.kind(word)
        except ValueError:
            wrong = f"must be a{' whole' * (self.kind is int)} number, not" if not self.is_list else "does not accept"
            raise InputError(f"{name} {wrong} {word!r}; see --help") from None


def _prefix(path: tuple[str, ...]) -> str:
    return ".".join(name.replace("_", "-") for name in path if name not in _WITHOUT_PREFIX)


class Options:
    """An option for every setting of a command.

    defaults: the settings if the command line says nothing. positional: the setting that is given without its name.
    hidden: options that there shall not be.
    """

    def __init__(self, defaults: Any, words: Sequence[str], positional: str = "", hidden: Collection[str] = ()) -> None:
        self._defaults, self._words, self._positional = defaults, words, positional
        options = [option for option in self._options_of(defaults) if option.name() not in hidden]
        self._options = sorted(options, key=lambda option: not option.is_positional)

    def _options_of(self, settings: Any, path: tuple[str, ...] = (), owners: tuple[type, ...] = ()) -> Iterator[Option]:
        hints, owners = get_type_hints(type(settings)), (*owners, type(settings))
        values = {setting.name: getattr(settings, setting.name) for setting in fields(settings)}
        for name, value in values.items():
            if not is_dataclass(value):
                is_list, may_be_none = get_origin(hints[name]) is tuple, NoneType in get_args(hints[name])
                kind = get_args(hints[name])[0] if is_list or may_be_none else hints[name]
                yield Option((*path, name), owners, kind, value, is_list, may_be_none, name == self._positional)
        for name, value in values.items():
            if is_dataclass(value):
                yield from self._options_of(value, (*path, name), owners)

    def read(self, ignore_others: bool = False) -> Any:
        """The settings that the command line asks for. ignore_others: pass over words that are no options here.

        Raises:
            InputError: An option is unknown, missing or malformed, or settings refuse a value.
        """

        def command(**_: Any) -> None: ...

        options = {f"option_{place}": option for place, option in enumerate(self._options)}
        signature = inspect.Signature([option.parameter(name) for name, option in options.items()])
        command.__signature__ = signature  # type: ignore[attr-defined]
        app = cyclopts.App(help_flags=(), version_flags=(), default_command=command)
        try:
            called, bound, unknown, _ = app.parse_known_args(self._words)
        except cyclopts.MissingArgumentError as error:
            if error.keyword:
                raise InputError(f"{error.keyword}: expected one argument; see --help") from error
            option = options[error.argument.field_info.name]  # type: ignore[union-attr]
            raise InputError(f"missing: {option.usage}: {' '.join(option.text.split())[:-1]}; see --help") from error
        except cyclopts.UnknownOptionError as error:  # where a positional one is expected
            raise self._unrecognized(error.unused_tokens or []) from error
        except cyclopts.CoercionError as error:
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            token: Any = error.token  # of a flag
            raise InputError(f"{token.keyword} must be true or false, not {token.value!r}; see --help") from error
        if called is not command:  # __complete is a word of cyclopts
            raise self._unrecognized(self._words)
        if unknown and not ignore_others:
            raise self._unrecognized(unknown)
        return _replaced(self._defaults, {options[name].path: value for name, value in bound.arguments.items()})

    def _unrecognized(self, words: Sequence[str]) -> InputError:
        """The error for these words, with the options that they may mean."""
        known, meant = [option.name() for option in self._options if not option.is_positional], []
        for name in (word.split("=")[0].lower() for word in words if word.startswith("--")):
            last = name.lstrip("-").split(".")[-1]
            same = [option for option in known if option.lstrip("-").split(".")[-1] == last]
            meant += difflib.get_close_matches(name, known, 1, 0.8) or same[:3]
        advice = f"did you mean {' or '.join(dict.fromkeys(meant))}?" if meant else "see --help"
        return InputError(f"unrecognized options: {', '.join(words)}; {advice}")

    def help(self) -> dict[str, str]:
        """Group -> help on its options. "run": the options without a prefix."""
        groups: dict[str, list[str]] = {"": ["run", "  -h, --help\n        show this help message and exit"]}
        for option in self._options:
            if option.group not in groups:
                groups[option.group] = [option.group, option.group_help()]
            groups[option.group].append(option.help())
        return {lines[0]: "\n".join(lines) for lines in groups.values()}


def _replaced(settings: Any, given: dict[tuple[str, ...], Any], path: tuple[str, ...] = ()) -> Any:
    """The settings with other values. given: the fields that lead to a value -> the value. path: those to here."""
    changes = {first: value for (first, *rest), value in given.items() if not rest}
    for name in dict.fromkeys(first for first, *rest in given if rest):
        inner = {names[1:]: value for names, value in given.items() if names[0] == name}
        changes[name] = _replaced(getattr(settings, name), inner, (*path, name))
    try:
        return replace(settings, **changes)
    except InputError as error:
        group = _prefix(path)
        raise InputError(f"--{group}: {error}" if group and "--" not in str(error) else str(error)) from error


@cache
def _texts_of(kind: type) -> dict[str, str]:
    """Field of a dataclass -> the docstring below it."""
    parsed = (docstring_parser.parse_from_object(base) for base in reversed(kind.__mro__) if is_dataclass(base))
    return {param.arg_name: param.description or "" for base in parsed for param in base.params}


def _wrapped(text: str, indent: str) -> str:
    """The text in lines of 80 characters."""
    return textwrap.fill(
        " ".join(text.split()), 80, initial_indent=indent, subsequent_indent=indent,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
