"""The examples in docstrings of public functions run, in the order in which a user needs them."""

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ray_backfill as rb

PUBLIC = (rb.write_folder, rb.simulate, rb.read_results, rb.Results.compare, rb.replay, rb.sample, rb.forecast)


def names() -> dict[str, Any]:
    """The arrays that the examples name."""
    rng = np.random.default_rng(0)
    centre, label, query_label = rng.normal(size=(40, 64)), np.arange(1200) % 40, np.arange(120) % 40

    def items(of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        old = centre[of][:, :32] + 1.5 * rng.normal(size=(len(of), 32))
        return old, centre[of] + rng.normal(size=(len(of), 64))

    (old_gallery, new_gallery), (old_queries, new_queries) = items(label), items(query_label)
    return locals() | {"rb": rb}


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given, finder, runner = names(), doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for function in PUBLIC:
        assert isinstance(function, Callable)  # type: ignore[arg-type]
        examples = [test for test in finder.find(function, globs=given) if test.examples]
        assert examples, f"{function.__name__} has no example"
        for test in examples:
            printed: list[str] = []
            failed, _ = runner.run(test, out=printed.append, clear_globs=False)
            assert not failed, "".join(printed)
