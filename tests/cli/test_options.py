"""What users may type: every way to give a value, and the one line that names the option if it is wrong."""

import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.core.errors import InputError


@dataclass(frozen=True)
class Rate:
    """How quickly."""

    limit: float | None = None
    """Largest rate."""
    kind: Literal["slow", "fast"] = "slow"
    """Kind of rate."""

    def __post_init__(self) -> None:
        if self.limit == 0:
            raise InputError("nothing would move")


@dataclass(frozen=True)
class Live:
    """A drill."""

    rate: Rate = field(default_factory=Rate)
    """Rate of the drill."""
    hard_mining: bool = True
    """Mine.

    Hard.
    """


@dataclass(frozen=True)
class Evaluation:
    """Not shown."""

    methods: tuple[str, ...] = ("rm", "fct")
    """Methods."""
    cutoffs: tuple[float, ...] = ()
    """Cut-offs."""


@dataclass(frozen=True)
class Job:
    """Work."""

    data: Path
    """Folder to read."""
    points: int = 11
    """Moments."""
    only: Path | None = None
    """File to read."""
    name: str = ""
    """Name."""
    live: Live = field(default_factory=lambda: Live(Rate(limit=2.0)))
    evaluation: Evaluation = field(default_factory=Evaluation)


def read(*words: str) -> Job:
    job: Job = Options(Job(REQUIRED), ["d", *words], positional="data").read()
    return job


def test_nothing_given_leaves_the_defaults_which_are_those_of_the_instance() -> None:
    assert read() == Job(Path("d"))
    assert read("--live.no-hard-mining").live == Live(Rate(limit=2.0), hard_mining=False)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--points 5", "points", 5),
        ("--points=5", "points", 5),
        ("--points -3", "points", -3),
        ("--points 1_000", "points", 1000),
        ("--points 5 --points 7", "points", 7),
        ("--only None", "only", None),
        ("--only none", "only", Path("none")),
        ("--only ~x", "only", Path("~x")),
        ("--name None", "name", "None"),
        ("--name={a}", "name", "{a}"),
        ("--name=", "name", ""),
        ("--name [1]", "name", "[1]"),
    ],
)
def test_values(words: str, name: str, value: object) -> None:
    assert getattr(read(*words.split()), name) == value


@pytest.mark.parametrize(
    ("words", "methods", "cutoffs"),
    [
        ("--methods a b --cutoffs -0.5 1e-3", ("a", "b"), (-0.5, 0.001)),
        ("--methods --cutoffs", (), ()),
        ("--methods a b --points 3 --methods c", ("c",), ()),
        ("--methods a --methods", (), ()),
        ("--methods=a b", ("a", "b"), ()),
        ("--methods [a,b]", ("[a,b]",), ()),
    ],
)
def test_lists(words: str, methods: tuple[str, ...], cutoffs: tuple[float, ...]) -> None:
    assert read(*words.split()).evaluation == Evaluation(methods, cutoffs)


def test_flags_and_groups() -> None:
    assert read("--live.hard-mining", "--live.no-hard-mining").live.hard_mining is False
    assert read("--live.hard-mining=false").live.hard_mining is False
    assert read("--live.rate.limit", "None", "--live.rate.kind", "fast").live.rate == Rate(None, "fast")
    assert math.isnan(read("--live.rate.limit", "nan").live.rate.limit or 0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--points 2.5", "--points must be a whole number, not '2.5'; see --help"),
        ("--points 0x10", "--points must be a whole number, not '0x10'; see --help"),
        ("--points", "--points: expected one argument; see --help"),
        ("--points --name x", "--points: expected one argument; see --help"),
        ("--points 5 6", "unrecognized options: 6; see --help"),
        ("--point 5", "unrecognized options: --point, 5; did you mean --points?"),
        ("--limit=5 --nmae x", "unrecognized options: --limit=5, --nmae, x; did you mean --live.rate.limit or --name?"),
        ("--evaluation.methods a", "unrecognized options: --evaluation.methods, a; did you mean --methods?"),
        ("-p 5", "unrecognized options: -p, 5; see --help"),
        ("--empty-methods", "unrecognized options: --empty-methods; see --help"),
        ("--data e", "unrecognized options: --data, e; see --help"),
        ("--cutoffs 1 x", "--cutoffs does not accept 'x'; see --help"),
        ("--live.rate.limit low", "--live.rate.limit must be a number, not 'low'; see --help"),
        ("--live.rate.limit 0", "--live.rate: nothing would move"),
        ("--live.rate.kind Fast", "invalid choice 'Fast' for argument '--live.rate.kind'; choose from slow, fast"),
        ("--live.hard-mining=maybe", "--live.hard-mining must be true or false, not 'maybe'; see --help"),
        ("--only=", "--only is empty; give a folder or a file"),
    ],
)
def test_one_line_says_which_option_is_wrong(words: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        read(*words.split())
    assert str(error.value) == line


def test_no_word_is_taken_for_something_else() -> None:
    for words in (["__complete", "x"], ["--version"], ["--help"], ["@file"], ["{}"]):
        with pytest.raises(InputError, match="unrecognized options: "):
            Options(Evaluation(), words).read()


def test_what_must_be_given() -> None:
    with pytest.raises(InputError, match=r"^missing: PATH: Folder to read; see --help$"):
        Options(Job(REQUIRED), [], positional="data").read()
    with pytest.raises(InputError, match=r"^missing: --data PATH: Folder to read; see --help$"):
        Options(Job(REQUIRED), ["--points", "3"]).read()
    with pytest.raises(InputError, match=r"^PATH is empty; give a folder$"):
        Options(Job(REQUIRED), [""], positional="data").read()


def test_some_options_can_be_read_before_the_others_and_others_hidden() -> None:
    first: Evaluation = Options(Evaluation(), ["--points", "x", "--methods", "a"]).read(ignore_others=True)
    assert first.methods == ("a",)
    with pytest.raises(InputError, match="unrecognized options: --methods, a"):
        Options(Evaluation(), ["--methods", "a"], hidden=("--methods",)).read()
    assert "--methods" not in Options(Evaluation(), [], hidden=("--methods",)).help()["run"]


def test_help_groups_the_options() -> None:
    help_ = Options(Job(REQUIRED), [], positional="data").help()
    assert list(help_) == ["run", "live", "live.rate"]
    assert "  PATH\n        Folder to read. (required)\n" in help_["run"]
    assert "  --methods [STR [STR ...]]\n        Methods. (default: rm fct)" in help_["run"]
    assert help_["live"].splitlines() == [
        *("live", "  A drill.", "  " + "-" * 78, "  --live.hard-mining, --live.no-hard-mining"),
        "        Mine. Hard. (default: True)",
    ]
    assert help_["live.rate"].splitlines()[1] == "  Rate of the drill."
    assert "  --live.rate.limit {None}|FLOAT\n        Largest rate. (default: 2.0)" in help_["live.rate"]
    assert "  --live.rate.kind {slow,fast}\n" in help_["live.rate"]


@pytest.mark.parametrize("first", ["", "import pydantic; "])
def test_a_library_that_checks_types_changes_nothing(first: str) -> None:
    code = f"{first}from tests.cli.test_options import read; print(read('--points', '3', '--only', 'None').points)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "3\n"
