"""A user's own function or class: ``python:module:object``. Everything else can be written as one of these."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import IMAGE, PAIR, TEXT, Device, Model, ModelKind
from ray_backfill.encode.spec import Spec


class PythonModel:
    """``encode(items)`` or ``encode(items, side=side)``, or of pairs ``score(queries, texts)``. A class is made an
    object first, in each process.
    """

    def __init__(self, module: Any, name: str, made: Any) -> None:
        self._module, self._name, self._call = module, name, made
        batch = getattr(made, "batch", 64)
        self.batch, self.has_prompts = batch if isinstance(batch, int) and batch > 0 else 64, False
        try:
            self._takes_side = "side" in inspect.signature(made).parameters
        except (TypeError, ValueError):  # of a function in C
            self._takes_side = False

    def prepare(self, items: Sequence[Any], side: str) -> Any:
        return items

    def __call__(self, prepared: Any, side: str) -> Any:
        return self._call(list(prepared), side=side) if self._takes_side else self._call(list(prepared))

    def score(self, queries: list[str], texts: list[str]) -> Any:
        return self._call(queries, texts)

    def identity(self) -> dict[str, Any]:
        own, file = getattr(self._call, "identity", None), getattr(self._module, "__file__", None)
        mark = hashlib.blake2b(Path(file).read_bytes() if file else b"", digest_size=12).hexdigest()
        return {"object": self._name, "source": mark} | ({"own": own()} if own else {})


def model_of(given: Callable[..., Any], modality: str) -> Model:
    """A function or an object of this process as a model."""
    if not callable(given):
        raise InputError(f"a model is words or a function of {modality}s, not {type(given).__name__}")
    name = getattr(given, "__qualname__", type(given).__qualname__)
    module = sys.modules.get(getattr(given, "__module__", ""))
    return Model(
        Spec("python", f"{getattr(module, '__name__', '')}:{name}"), modality, PythonModel(module, name, given)
    )


def _load(spec: Spec, modality: str, device: Device) -> PythonModel:
    name, colon, attribute = spec.name.partition(":")
    if not colon:
        raise InputError(f"{spec} must name a module and an object in it, as in python:mymodels:old")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.split(".")[0] and error.name != name:
            raise InputError(f"{spec}: {name} needs {error.name}, which is not installed") from error
        raise InputError(f"{spec}: there is no module {name} in {here} or among the installed packages") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{spec}: {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise InputError(f"{spec}: the module {name} has no {attribute}")
    thing = getattr(module, attribute)
    try:
        made = thing() if inspect.isclass(thing) else thing
    except (Exception, SystemExit) as error:
        raise InputError(f"{spec}: {attribute}() failed: {type(error).__name__}: {error}") from error
    if not callable(made):
        takes = "a list of queries and one of texts" if modality == PAIR else f"a list of {modality}s"
        raise InputError(f"{spec}: {attribute} is {type(made).__name__}; it must take {takes}")
    return PythonModel(module, attribute, made)


MODELS = (
    ModelKind(
        "python", (TEXT, IMAGE), "python:MODULE:OBJECT",
        "A function of yours that turns a list of texts, or of PIL images, into an array; or a class without arguments "
        "that makes one.", _load,
    ),
)  # fmt: skip
RERANKERS = (
    ModelKind(
        "python", (PAIR,), "python:MODULE:FUNCTION",
        "A function of yours that turns a list of queries and one of texts into scores; or a class that makes one.",
        _load,
    ),
)  # fmt: skip
