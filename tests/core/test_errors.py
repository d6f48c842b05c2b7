"""Libraries of extras that are not installed end in one line that says what to type."""

import shlex
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from ray_backfill.core.errors import InputError, input_error_in
from ray_backfill.core.plugins import Deferred


@pytest.mark.parametrize("library", ["torch", "ray", "faiss"])
def test_a_missing_library_is_an_error_of_input(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        __import__(f"{library}.absent")
    found = input_error_in(caught.value)
    said, _, typed = str(found).partition("; type: ")
    assert said == f"this needs {library}, which is not installed"
    command, packages = typed[:21], [Requirement(word) for word in shlex.split(typed)[4:]]
    assert command == "python -m pip install"
    assert {"ray", "torch", "faiss-cpu"} < {package.name for package in packages}
    assert all(metadata.version(package.name) in package.specifier for package in packages)
    with pytest.raises(InputError, match=library):
        Deferred(f"{library}.absent", "anything").load()


def test_other_modules_that_are_not_found_are_bugs() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught:
        Deferred("no_such_module", "anything")()
    assert input_error_in(caught.value) is None
