"""Public functions that belong to no single package: the commands, and tables of names.

What they need (torch, Ray) is imported when they are called: looking at a signature should cost nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from ray_backfill.core.errors import InputError, input_error_in
from ray_backfill.core.job import AT_END, say_job
from ray_backfill.core.run_lock import locked
from ray_backfill.core.store_path import path_of

if TYPE_CHECKING:
    from ray_backfill.compare.report import Results
    from ray_backfill.data.folder import EmbeddingFolder
    from ray_backfill.data.write import Arrays, Columns
    from ray_backfill.encode.items import ItemSettings
    from ray_backfill.forecast.report import ForecastResults
    from ray_backfill.learn.methods import Method
    from ray_backfill.learn.training.settings import FitSettings
    from ray_backfill.plan.report import PlanResults
    from ray_backfill.workers.settings import Context


def simulate(
    data: "str | Path | EmbeddingFolder | None" = None,
    *,
    old: "Arrays | None" = None,
    new: "Arrays | None" = None,
    label: "Arrays | None" = None,
    train: "Columns | None" = None,
    out: str | Path | None = None,
    methods: str | Sequence[str] = "recommended",
    orders: str | Sequence[str] = "random",
    merges: str | Sequence[str] = "best",
    metrics: str | Sequence[str] = "recommended",
    points: int = 11,
    distance: str = "cosine",
    margin: float = 0.005,
    truth: str | Sequence[str] = (),
    filter: str = "",
    slices: str | Sequence[str] = (),
    order_seed: int = 0,
    permutations: int = 1,
    cutoffs: float | Sequence[float] = (),
    embed_per_query: bool = False,
    service: str | Path | None = None,
    fits: "FitSettings | None" = None,
    device: str = "cpu",
    shards: int = 0,
    overwrite: bool = False,
) -> "Results":
    """Compare upgrade methods on a folder of embeddings, as ``ray-backfill simulate --data`` does, or on arrays.

    >>> results = rb.simulate("my_embeddings", methods=["rm_naive", "ridge_gallery"], out="runs/mine")
    >>> provisional = rb.simulate(old=(old_queries, old_gallery), new=(new_queries, new_gallery), points=3)
    >>> provisional.manifest.data["queries"], "ridge_gallery" in provisional.methods
    (120, True)

    The other arguments are the command's options of these names, see ``Evaluation``; ``methods()``, ``orders()`` and
    ``merges()`` list the names. The old and the new model always take part.

    Args:
        data: Folder of embeddings (``write_folder``), or what ``read_folder`` returned for it.
        old: Instead of a folder, the old model's embeddings of the queries and of the gallery: two arrays, (Q, d) and
            (N, d). One array is a gallery whose items query the others.
        new: The new model's embeddings of the same queries and items; its d may differ.
        label: Labels of the queries and of the gallery, (Q,) and (N,).
        train: With arrays, further items to fit maps on: {"old": (T, d), "new": (T, d)}, and "label" if there are any.
        out: Folder of the run; by default a temporary one, deleted at the end. The same call continues a run that was
            stopped and reuses finished stages; further methods, orders and merges extend its results.
        fits: How maps between the models are trained; by default as on the command line.
        device: "cpu" or "cuda" for the replay, with the same results.
        shards: Gallery shards, each a Ray actor; 0 replays in this process unless the gallery is too large for it.
        overwrite: Replace what ``out`` has of other settings or other data.

    Without labels, positives and ``truth``, right answers are what the new model finds first ("new-top1"), and figures
    are provisional. Maps and merges are fitted on the train split; without one, and so with arrays, on a random sample
    of the gallery. Then "recommended" trains no network.

    Returns:
        Curves, summary and differences. ``results.manifest.left_out`` names what the folder had no data for, and why.

    Raises:
        InputError: Unknown names, settings or data that do not fit, ``out`` of another run, or a full disk.
    """
    how = _tuples(methods=methods, orders=orders, merges=merges, metrics=metrics, truth=truth, slices=slices)
    how |= _tuples(cutoffs=cutoffs) | {"points": points, "distance": distance, "margin": margin, "filter": filter}
    how |= {"order_seed": order_seed, "permutations": permutations, "embed_per_query": embed_per_query}
    how["service"] = None if service is None else path_of(service)
    with _data_of(data, {"old": old, "new": new, "label": label}, out, train) as folder:
        return _simulate(folder, out, how, fits, {"device": device, "shards": shards}, overwrite)


def judge(
    to: str | Path,
    data: "str | Path | EmbeddingFolder | None" = None,
    *,
    old: "Arrays | None" = None,
    new: "Arrays | None" = None,
    distance: str = "cosine",
    filter: str = "",
) -> Path:
    """Write the items that a person must judge to decide which model is better, as ``simulate --judge`` does.

    >>> sheet = rb.judge("judgements.csv", old=(old_queries, old_gallery), new=(new_queries, new_gallery))

    Judge the first 50 queries, all items of each: 1 if right, else 0, in the column "right". Then
    ``simulate(..., truth=["judged", sheet])`` with the same embeddings says which model is better.

    Args:
        to: The CSV file to write. The ids of arrays are row numbers.
        data: Embeddings, as for ``simulate``.
        old: Instead of a folder, arrays of the old model, as for ``simulate``.
        new: Arrays of the new model.
        distance: Distance between embeddings, as for ``simulate``.
        filter: Column that restricts what a query finds, as for ``simulate``.

    Returns:
        The path of the file.

    Raises:
        InputError: The file is there already, or both models find the same first items for every query.
    """
    from ray_backfill.data.folder import read_folder
    from ray_backfill.data.truth import ask_for_judgements, check_new_sheet

    check_new_sheet(path := path_of(to))
    with _data_of(data, {"old": old, "new": new}, None) as folder:
        ask_for_judgements(read_folder(_folder_of(folder)), path, distance, filter)
    return path


def embed(
    old: "str | Callable[..., Any]",
    new: "str | Callable[..., Any]",
    *,
    out: str | Path,
    texts: str | Path = "",
    images: str | Path = "",
    queries: str | Path = "",
    train: str | Path = "",
    items: "ItemSettings | None" = None,
    overwrite: bool = False,
) -> "EmbeddingFolder":
    """Embed texts or images with two models, as ``ray-backfill embed --old --new`` does, for ``simulate``.

    Args:
        old: The model that serves now: words such as "sentence-transformers:all-MiniLM-L6-v2" (docs/models.md), or a
            function that turns a list of texts, or of PIL images, into an array.
        new: The model that will replace it. If either is a function, this process embeds everything, without Ray.
        out: Folder of the run. The same call continues a run that was stopped.
        texts: A table of texts (a file, a database), a folder as BEIR or MTEB has it, or "ir_datasets:NAME"; or instead
        images: a folder, whose subfolders are classes, a table of paths, or tar shards.
        queries: Queries of the same kind. Without them, a part of the items is drawn.
        train: Items on which maps are fitted; drawn if queries are drawn.
        items: Names of columns, and how many items are drawn.
        overwrite: Replace what ``out`` has of other settings.

    Raises:
        InputError: A model or a source cannot be used.
    """
    from ray_backfill.data.folder import read_folder
    from ray_backfill.encode.items import ItemSettings, ItemSources
    from ray_backfill.encode.kinds import parse_spec
    from ray_backfill.encode.stage import embed_two

    if bool(texts) == bool(images):
        raise InputError("give texts or images: what the two models embed")
    if listed := [name for name, given in (("texts", texts), ("images", images)) if not isinstance(given, str | Path)]:
        raise InputError(
            f"{listed[0]} must name a file or a folder; pandas.DataFrame({{'text': [...]}}).to_csv('my.csv') writes one"
        )
    sources = ItemSources("text" if texts else "image", str(texts or images), str(queries), str(train))
    given = {
        name: parse_spec(each, name) if isinstance(each, str) else each for name, each in (("old", old), ("new", new))
    }
    with _running(out, "rb.embed(...)", {}, overwrite) as context:
        return read_folder(embed_two(context, given, sources, items or ItemSettings()))


@contextmanager
def _data_of(
    data: "str | Path | EmbeddingFolder | None",
    arrays: "Mapping[str, Arrays | None]",
    out: str | Path | None,
    train: "Columns | None" = None,
) -> "Iterator[str | Path | EmbeddingFolder]":
    """The folder of embeddings; arrays are written to ``arrays`` in the folder of the run, or to a temporary one."""
    from ray_backfill.data.words import ARRAYS
    from ray_backfill.data.write import write_arrays

    places = {"queries": "query", "gallery": "gallery"}
    names = {f"{split}/{model}": f"the {model} {of} array" for split, of in places.items() for model in ("old", "new")}
    names |= {f"{split}/label": f"the array of {of} labels" for split, of in places.items()}
    words = {**ARRAYS, **names, "train": "the argument train", "l2": 'pass distance="l2"'}
    given = {name for name, each in {**arrays, "train": train}.items() if each is not None}
    if (given and data is not None) or (data is None and not given >= {"old", "new"}):
        raise InputError("give a folder of embeddings, or old=(queries, gallery) and new=(queries, gallery)")
    with ExitStack() as stack:
        if data is None:
            to = stack.enter_context(TemporaryDirectory()) if out is None else out
            data = write_arrays(path_of(to) / "arrays", arrays, words, train)
        yield data


def _tuples(**lists: Any) -> dict[str, Any]:
    """Lists as tuples; a single value is a list of one."""
    return {name: (given,) if isinstance(given, str | Real) else tuple(given) for name, given in lists.items()}


def _simulate(
    data: "str | Path | EmbeddingFolder",
    out: str | Path | None,
    evaluation: Mapping[str, Any],
    fits: "FitSettings | None",
    place: Mapping[str, Any],
    overwrite: bool,
) -> "Results":
    """``simulate`` with the arguments of ``Evaluation`` and ``ReplayPlace``."""
    from ray_backfill.compare.evaluation import Evaluation
    from ray_backfill.compare.report import read_results
    from ray_backfill.compare.run import evaluate_folder
    from ray_backfill.learn.training.settings import FitSettings

    folder = _folder_of(data)
    with _running(out, f"rb.simulate({str(folder)!r}, ...)", place, overwrite) as context:
        made = evaluate_folder(folder, Evaluation(**evaluation), fits or FitSettings.of_folder(), context)
        return replace(read_results(made), is_kept=out is not None)


def sample(
    data: "str | Path | EmbeddingFolder",
    budget: int = 0,
    *,
    add: int = 0,
    out: str | Path | None = None,
    truth: str | Sequence[str] = (),
    distance: str = "cosine",
    filter: str = "",
    seed: int = 0,
) -> pd.DataFrame:
    """Choose the gallery items to embed for a forecast, as ``ray-backfill sample`` does.

    >>> len(rb.sample("my_embeddings", 200))
    200

    Args:
        data: Folder with the gallery's old embeddings and the queries' embeddings by both models.
        budget: Number of items to choose. 1 to 2 % of a large gallery are a good start.
        add: Instead, extend the sample by this many items; what it has stays in it.
        out: File to write; by default sample.parquet in the folder.
        truth: Which items count as right answers, as for ``simulate``.
        distance: "cosine" or "l2".
        filter: Column of queries and gallery; a query finds only items with its own value.
        seed: Random seed of the sample.

    Returns:
        One row for each item: ``id``, ``reason``, ``probability``, ``round``; the written file has the same.

    Raises:
        InputError: The folder lacks something, the budget does not fit, or ``out`` already holds a sample.
    """
    from ray_backfill.forecast.sample import take_sample
    from ray_backfill.forecast.settings import SAMPLE_FILE, SampleSettings

    folder = _folder_of(data)
    if (budget > 0) == (add > 0):
        raise InputError("give a budget for a first sample, or add=N to extend one")
    to = path_of(out or folder / SAMPLE_FILE).absolute()
    take_sample(folder, to, budget, SampleSettings(seed, **_tuples(truth=truth), distance=distance, filter=filter), add)
    return pd.read_parquet(to)


def forecast(
    data: "str | Path | EmbeddingFolder",
    new: str | Path | Sequence[str | Path] = (),
    *,
    sample: str | Path | None = None,
    out: str | Path | None = None,
    methods: str | Sequence[str] = "recommended",
    orders: str | Sequence[str] = "random",
    metrics: str | Sequence[str] = "recommended",
    points: int = 11,
    order_seed: int = 0,
    merge: str = "best",
    fits: "FitSettings | None" = None,
    shards: int = 0,
    overwrite: bool = False,
) -> "ForecastResults":
    """Forecast the curves from the new embeddings of a sample, as ``ray-backfill forecast`` does.

    >>> forecast = rb.forecast("my_embeddings", methods="rm_naive", metrics="mAP@100")
    >>> forecast.summary[["method", "auc_low", "auc", "auc_high"]].shape
    (1, 4)

    Args:
        data: Folder with the gallery's old embeddings and the queries' embeddings by both models.
        new: Files or other sources with ``id`` and ``new`` of the sampled items, such as what
            ``np.savez("new.npz", id=..., new=...)`` writes; by default the gallery's own new embeddings.
        sample: File that ``sample`` wrote; by default sample.parquet in the folder.
        out: Folder of the run, whose earlier forecast is replaced; by default a temporary one, deleted at the end.
        methods: Upgrade methods, by name or group (see ``rb.methods``).
        orders: Orders of the backfill.
        metrics: mAP, nDCG, or mAP@k, nDCG@k, recall@k from k = 100 on; by default mAP@100 and recall@100.
        points: Number of moments of the backfill to report, at most 1,001.
        order_seed: Random seed for the random order.
        merge: How distances are merged; by default one is chosen for each method, as by ``simulate``.
        fits: How maps between the models are trained; by default as on the command line.
        shards: Gallery shards, each a Ray actor; 0 counts in this process unless the gallery is too large for it.
        overwrite: Replace what ``out`` has of maps with other settings or other data.

    Returns:
        Curves, summary and differences with 95 % intervals.

    Raises:
        InputError: A file is missing or does not fit, or something that was asked for cannot be forecast.
    """
    from ray_backfill.forecast.report import read_forecast
    from ray_backfill.forecast.run import forecast_folder
    from ray_backfill.forecast.settings import SAMPLE_FILE, ForecastSettings
    from ray_backfill.learn.training.settings import FitSettings

    folder = _folder_of(data)
    names = _tuples(methods=methods, orders=orders, metrics=metrics)
    how = ForecastSettings(**names, points=points, order_seed=order_seed, merge=merge)
    sources = [str(new)] if isinstance(new, str | Path) else [str(each) for each in new]
    with _running(out, f"rb.forecast({str(folder)!r}, ...)", {"shards": shards}, overwrite) as context:
        given = path_of(sample or folder / SAMPLE_FILE)
        made = forecast_folder(folder, given, sources, how, fits or FitSettings.of_folder(), context)
        return replace(read_forecast(made), is_kept=out is not None)


def export(run: str | Path, to: str | Path, *, method: str, merge: str = "", order: str = "") -> Path:
    """Write what a service needs to serve a method while its gallery is backfilled, as ``ray-backfill export`` does.

    >>> folder = rb.export("runs/mine", "upgrade", method="ridge_gallery")
    >>> sorted(path.name for path in folder.glob("*.onnx"))
    ['items_backward.onnx', 'items_forward.onnx', 'queries_backward.onnx', 'queries_forward.onnx']

    Args:
        run: Folder of a finished simulation, which ``simulate`` wrote with ``out``.
        to: Folder to write, which must not hold anything else. One that is this export already stays as it is.
        method: A method of the run that is served while the gallery is backfilled.
        merge: Merge of the run; by default that with which the method is best by the metric that leads.
        order: Backfill order of the run; by default that with which the method is best.

    Returns:
        The folder; its README.md says what to do with it.

    Raises:
        InputError: The run has no such row, its embeddings or maps are gone, the method cannot be exported, or ``to``
            holds anything else.
    """
    from ray_backfill.export.run import export_run

    if not isinstance(run, str | Path):
        raise InputError("give the folder of a simulation, which simulate(..., out=FOLDER) writes")
    return export_run(path_of(run).absolute(), path_of(to).absolute(), method, merge, order)


def plan(
    results: str | Path, fleet: str | Path | None = None, *, what_if: Sequence[str] = (), out: str | Path | None = None
) -> "PlanResults":
    """Plan an upgrade: whether to merge online or to switch, as ``ray-backfill plan`` does.

    >>> upgrade = rb.plan("runs/mine", "fleet.yaml", what_if=["workers=8,16,32"])
    >>> upgrade.verdict, upgrade.frame, upgrade.flips

    Args:
        results: Folder that ``simulate`` or ``forecast`` wrote with ``out``, or the name of a recipe.
        fleet: fleet.yaml: machines, prices and the service; docs/plan.md has its keys. None: hours are unknown.
        what_if: Other values of an assumption, such as "workers=8,16,32".
        out: Folder of the plan; by default ``plan`` in that of the results.

    Returns:
        The verdict, every way to upgrade and every assumption. Hours and dollars are NaN where they are unknown.

    Raises:
        InputError: Results are missing or have no interval, or the fleet is malformed.
    """
    from ray_backfill.plan.report import read_plan
    from ray_backfill.plan.run import plan_upgrade

    to = path_of(out).absolute() if out else None
    return read_plan(
        plan_upgrade(path_of(results).absolute(), path_of(fleet) if fleet else None, to, what_if, "rb.plan(...)")
    )


def _folder_of(data: "str | Path | EmbeddingFolder") -> Path:
    from ray_backfill.data.folder import EmbeddingFolder

    if not isinstance(data, str | Path | EmbeddingFolder):
        raise InputError(
            f"data must be a folder of embeddings, not {type(data).__name__}; rb.write_folder(path, gallery) writes one"
        )
    return path_of(data.path if isinstance(data, EmbeddingFolder) else data).absolute()


@contextmanager
def _running(out: str | Path | None, command: str, place: Mapping[str, Any], overwrite: bool) -> "Iterator[Context]":
    """Lock the folder of the run; an InputError inside of another error is raised itself."""
    from ray_backfill.workers.settings import Context, ReplayPlace

    with ExitStack() as stack:
        to = path_of(stack.enter_context(TemporaryDirectory()) if out is None else out).absolute()
        stack.enter_context(locked(to, "out", command))
        stack.enter_context(AT_END)
        say_job(command=command, out=str(to))
        try:
            yield Context(to, place=ReplayPlace(**place), command=command, overwrite=overwrite)
        except Exception as error:
            found = input_error_in(error)  # of an actor or a worker
            if found is None:
                raise
            raise found from error


def methods() -> pd.DataFrame:
    """List every known upgrade method.

    Returns:
        One row for each method, by name: ``title`` and ``family`` as reports show them; ``needs``: what a folder must
        have beside embeddings of gallery and queries; ``is_trained``: whether something is trained, in contrast to a
        formula; ``is_recommended``: whether it takes part in "recommended"; ``source``: paper and place.
    """
    from ray_backfill.learn.methods import all_methods

    columns = ("title", "family", "needs", "is_trained", "is_recommended", "source")
    return _table(all_methods(), columns, _needs_of_method)


def orders() -> pd.DataFrame:
    """List every known backfill order.

    Returns:
        One row for each order, by name: ``title``; ``needs``: gallery columns, or what else must be there;
        ``is_oracle``: whether it uses what nobody knows before the backfill, an upper bound; ``source``: paper and
        place.
    """
    from ray_backfill.engine.orders import Order, all_orders

    def needs(order: Order) -> str:
        return order.remedy or " or ".join(f"gallery column {column!r}" for column in order.needs)

    return _table(all_orders(), ("title", "needs", "is_oracle", "source"), needs)


def merges() -> pd.DataFrame:
    """List every known merge: the ways to make the distances of two systems comparable.

    Returns:
        One row for each merge, by name: ``title``; ``needs``: what it is fitted on; ``distances`` that it is made for;
        ``source``: paper and place.
    """
    from ray_backfill.engine.merges import all_merges

    found = _table(
        all_merges(),
        ("title", "needs", "distances", "source"),
        lambda kind: ", ".join(_fitted_on(kind.needs_train, kind.needs_labels)),
    )
    return found.assign(distances=[", ".join(each) or "any" for each in found["distances"]])


def _table(known: Mapping[str, Any], columns: Sequence[str], needs: Callable[[Any], str]) -> pd.DataFrame:
    """These fields of the rows, by name; "needs" is no field."""
    rows = (
        {column: needs(row) if column == "needs" else getattr(row, column) for column in columns}
        for row in known.values()
    )
    return pd.DataFrame(rows, index=pd.Index(known, name="name"))


def _fitted_on(train: bool, labels: bool) -> list[str]:
    return ["train items with labels" if labels else "train items"] if train else []


def _needs_of_method(method: "Method") -> str:
    needs = _fitted_on(method.fit is not None, method.fit is not None and method.fit.needs_labels)
    needs += [f"embeddings of a further model, {name}" for name in method.models if name not in ("old", "new")]
    if len(method.query_models) > 1 and not method.is_reference:
        needs.append(f"both models, {' and '.join(method.query_models)}, for each query")
    return ", ".join(needs)
