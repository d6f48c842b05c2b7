"""What only a GPU can tell: equal bits, the error bound on cuBLAS, faiss copies under load, and ratios.

Each piece needs torch with CUDA; ``faiss`` also faiss-gpu, and ``nccl`` two GPUs. Nothing is skipped: a piece that
cannot run fails. Each takes at most ten minutes and can be run again.

    python -m benchmarks.gpu                        # all; `make gpu` writes what they print into docs/results/gpu.md
    python -m benchmarks.gpu stack products         # some
    python -m benchmarks.gpu --pretend              # on any machine: small products and curves on a pretended device
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

import ray_backfill as rb
from benchmarks.gpu_limits import card_named, limits
from benchmarks.pretended import pretended
from benchmarks.replay_tools import seconds
from ray_backfill.encode.encoder import Device
from ray_backfill.encode.kinds import load_model, parse_spec
from ray_backfill.engine.device import full_float32, make_tiles
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.engine.merges import fit_merge
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.replay.first import find_first
from ray_backfill.engine.replay.prepare import Served
from ray_backfill.engine.stack import read_stack
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, TransformTraining

DEVICE = "cuda"
# Sizes of products and curves: a pretended device is a CPU.
SCALE = 1.0
# What was printed, as lines of JSON.
PRINTED: list[str] = []


def note(**facts: Any) -> None:
    """Print one line of JSON."""
    PRINTED.append(json.dumps({key: round(x, 5) if isinstance(x, float) else x for key, x in facts.items()}))
    print(PRINTED[-1], flush=True)


def scaled(number: int) -> int:
    return max(1, int(number * SCALE))


def stack() -> None:
    """Torch sees the GPU, and float32 products are exact where TF32 would round them."""
    found = read_stack()
    problem = found.problem(1, with_faiss=True)
    note(**asdict(found), problem=problem)
    assert not problem, problem
    device = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    note(
        device=device.name, torch=torch.__version__, cuda=torch.version.cuda, gpus=torch.cuda.device_count(),
        free_gb=free / 1e9, total_gb=total / 1e9, numpy=np.__version__,
    )  # fmt: skip
    torch.set_float32_matmul_precision("high")
    left = torch.full((256, 256), 1 + 2.0**-12, device=DEVICE)
    eye = torch.eye(256, device=DEVICE)
    tf32_rounds = not torch.equal(left @ eye, left)
    with full_float32():
        exact = torch.equal(left @ eye, left)
    note(tf32_rounds_outside=tf32_rounds, exact_inside=exact)
    assert exact, "float32 products are rounded to TF32"


def products() -> None:
    """|v - float64| stays within the form's error bound, for shapes that make cuBLAS choose different kernels."""
    rng, largest = np.random.default_rng(0), 0.0
    with full_float32():
        for dims in (1, 2, 3, 64, 127, 128, 384, 1024, 2049):
            for n_queries, n_items in ((1, 1), (1, 65_536), (384, 65_536), (1024, 4097), (33, 511)):
                if dims > 1024 and n_items > 10_000:
                    continue
                n_queries, n_items = scaled(n_queries), scaled(n_items)
                for distance in ("cosine", "l2", "inner_product"):
                    query, gallery = (rng.normal(size=(n, dims)).astype(np.float32) * 3 for n in (n_queries, n_items))
                    form = ProductForm.of(rb.RetrievalSystem(query, gallery), distance)
                    rows = np.arange(n_queries)
                    (tiles,) = make_tiles([form], DEVICE)
                    left = tiles.queries(rows)
                    v = tiles.products(left, 0, n_items).double()
                    exact = left.double() @ tiles.tile(0, n_items).double().T
                    share = (v - exact).abs().amax(1).cpu().numpy() / form.error(rows)
                    largest = max(largest, float(share.max()))
    note(largest_error_of_products_as_part_of_the_bound=largest)
    assert largest < 1


def curves() -> None:
    """Replays and first items are equal to the last bit: kept or not, tile edges, float16, ties, merges, orders."""
    cases = 0
    for distance in ("cosine", "l2", "inner_product"):
        for n_queries, n_items, dims, tied, dtype in (
            (300, 70_000, 8, True, np.float32),
            (130, 65_536, 96, False, np.float32),
            (65, 131_073, 33, False, np.float16),
            (1500, 3000, 128, False, np.float32),
        ):
            rng, n_queries, n_items = np.random.default_rng(cases), scaled(n_queries), scaled(n_items)
            pair, label, of_query = _random(rng, n_queries, n_items, dims, tied, dtype)
            truth = rb.GroundTruth.from_labels(of_query, label)
            orders = {name: rng.permutation(n_items) for name in "ab"}
            drawn, train_label, _ = _random(rng, 4, 2000, dims, False, np.float32)
            systems = [rb.RetrievalSystem(x, x) for x in (drawn.backward.gallery, drawn.forward.gallery)]
            train = rb.UpgradePair(systems[0], systems[1])
            names = ["raw", "quantile", "rrf"] + (["csls"] if distance == "cosine" else [])
            for name in names:
                merge = fit_merge(name, train, train_label, distance)
                for metrics in (("mAP", "CMC@1", "nDCG@10"), ("mAP@100", "CMC@1", "recall@10")):
                    if name == "rrf" and metrics[0] != "mAP":
                        continue
                    here, there = (
                        rb.replay(pair, truth, orders, 5, metrics, distance, merge=merge, device=device)
                        for device in ("cpu", DEVICE)
                    )
                    for order in orders:
                        for metric in metrics:
                            np.testing.assert_array_equal(there[order].per_query[metric], here[order].per_query[metric])
                    cases += 1
                if name in ("raw", "quantile"):
                    both = [pair.backward, pair.forward]
                    served = Served(0, 1, orders, merge=merge)
                    rows = np.flatnonzero(np.isin(of_query, label))
                    a, b = (find_first(both, served, truth, rows, 5, distance, device=d) for d in ("cpu", DEVICE))
                    for order in orders:
                        np.testing.assert_array_equal(a[order].item, b[order].item)
                        np.testing.assert_array_equal(a[order].is_forward, b[order].is_forward)
                    cases += 1
    note(replays_with_equal_bits=cases)


def _random(
    rng: np.random.Generator, n_queries: int, n_items: int, dims: int, tied: bool, dtype: Any
) -> tuple[rb.UpgradePair, Any, Any]:
    label, of_query = rng.integers(0, 900, n_items), rng.integers(0, 900, n_queries)
    systems = []
    for _ in range(2):
        centres = rng.normal(size=(900, dims))
        query, gallery = (centres[y] + rng.normal(size=(len(y), dims)) for y in (of_query, label))
        if tied:
            query, gallery = query.round(), gallery.round()
        query[~query.any(1), 0], gallery[~gallery.any(1), 0] = 1, 1
        systems.append(rb.RetrievalSystem(query.astype(dtype), gallery.astype(dtype)))
    return rb.UpgradePair(systems[0], systems[1]), label, of_query


# Queries, items, dimensions, right answers of a query, metrics.
SHAPES = (
    (20_000, 20_000, 128, 50, ("mAP", "CMC@1")),
    (2_000, 400_000, 128, 50, ("mAP", "CMC@1")),
    (1_129, 761_757, 512, 30, ("mAP@100", "CMC@1")),
    (2_000, 100_000, 1_280, 50, ("mAP", "CMC@1")),
)


def speed(scale: float = 1.0) -> None:
    """Seconds of replays on the CPU and the GPU, beside bare products of both systems on the GPU."""
    for n_queries, n_items, dims, n_right, metrics in SHAPES:
        n_queries, n_items = int(n_queries * scale), int(n_items * scale)
        pair, truth = _clustered(n_queries, n_items, dims, n_right)
        order = np.random.default_rng(1).permutation(n_items)
        times = {}
        for device in (DEVICE, "cpu"):
            work = partial(rb.replay, pair, truth, order, 11, metrics, device=device)
            if device == DEVICE:
                rb.replay(pair, truth, order, 11, metrics, device=device)  # compiles, and starts the device
            times[device] = seconds(work, 2)
        bare, card = _bare(pair), card_named(torch.cuda.get_device_name() if DEVICE == "cuda" else "")
        least = limits(card, n_queries, n_items, dims, "@" in metrics[0], usable_cpus()).seconds if card else None
        note(
            shape=f"{n_queries} x {n_items} x {dims}, {n_right} right, {metrics[0]}", cpu_s=times["cpu"],
            gpu_s=times[DEVICE], products_s=bare, cpu_by_gpu=times["cpu"] / times[DEVICE],
            gpu_by_products=times[DEVICE] / bare, limit_s=least,
            gpu_by_limit=times[DEVICE] / least if least else None,
            tflops=4 * n_queries * n_items * dims / bare / 1e12,
        )  # fmt: skip


def _clustered(n_queries: int, n_items: int, dims: int, n_right: int) -> tuple[rb.UpgradePair, rb.GroundTruth]:
    rng = np.random.default_rng(0)
    n_classes = n_items // n_right
    label, of_query = rng.permutation(n_items) % n_classes, rng.integers(0, n_classes, n_queries)
    systems = []
    for noise in (1.5, 1.0):
        centres = rng.standard_normal((n_classes, dims), np.float32)
        query, gallery = (
            centres[y] + np.float32(noise) * rng.standard_normal((len(y), dims), np.float32) for y in (of_query, label)
        )
        systems.append(rb.RetrievalSystem(query, gallery))
    return rb.UpgradePair(systems[0], systems[1]), rb.GroundTruth.from_labels(of_query, label)


def _bare(pair: rb.UpgradePair) -> float:
    """Seconds of float32 products of all queries with all items of both systems, without copies to the device."""
    n_items, tile = pair.n_gallery, min(pair.n_gallery, 1 << 16)
    query, gallery = (torch.from_numpy(x).to(DEVICE) for x in (pair.forward.query, pair.forward.gallery[:tile]))

    def multiply() -> None:
        for _ in (pair.backward, pair.forward):
            for i in range(0, len(query), 1024):
                for first in range(0, n_items, tile):
                    query[i : i + 1024] @ gallery[: n_items - first].T
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    with full_float32():
        return seconds(multiply)


def text() -> None:
    """Rate and difference of a text model of MiniLM's size with random weights, by precision, beside the CPU."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(3000))]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words[5:], rng.integers(5, 120))) for _ in range(4000)]
    with TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join(words), encoding="utf-8")
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(words), hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
        BertModel(config).eval().save_pretrained(folder)
        BertTokenizerFast(vocab=str(vocabulary), model_max_length=128).save_pretrained(folder)
        expected, cpus = np.empty((0, 384), np.float32), usable_cpus()
        for device, options in (("cpu", ""), (DEVICE, ""), (DEVICE, "&dtype=bf16"), (DEVICE, "&dtype=fp16")):
            spec = parse_spec(f"hf:{folder}#batch={32 if device == 'cpu' else 256}{options}")
            model = load_model(spec, "text", Device(device, cpus))
            own = texts[:1000] if device == "cpu" else texts
            model.embed(texts[:300], "query")
            began = time.perf_counter()
            found = model.embed(own, "query")
            rate = len(own) / (time.perf_counter() - began)
            expected = found[:200] if not len(expected) else expected
            note(
                device=device, options=options, texts_per_s=rate,
                largest_difference=float(abs(found[:200] - expected).max()),
                length=float(np.linalg.norm(expected, axis=1).mean()),
            )  # fmt: skip


def faiss() -> None:
    """Indexes on the GPU find what the same indexes find on the CPU; searches beside merges do not end the process."""
    rng = np.random.default_rng(0)
    vectors, query = (rng.standard_normal((n, 64), np.float32) for n in (50_000, 200))
    for kind in ("Flat", "IVF64,Flat", "IVF64,PQ16"):
        for distance in ("cosine", "l2", "inner_product"):
            found = []
            for device in ("cpu", DEVICE):
                settings = IndexSettings(kind, device=device)
                partition = make_partition(settings, distance, 64, vectors[:20_000])
                partition = partition.with_rows(vectors, np.arange(len(vectors))).compacted()
                work: Callable[[], Any] = partial(partition.search, query, 10)
                found.append((work(), seconds(work, 3)))
            (here, cpu_s), (there, gpu_s) = found
            same = np.mean([len(np.intersect1d(a, b)) for a, b in zip(here.item, there.item, strict=True)]) / 10
            note(kind=kind, distance=distance, same_first_10=float(same), cpu_by_gpu=cpu_s / gpu_s)
            assert same > 0.99, "the GPU index finds other items"
    _beside_merges(vectors, query)


def _beside_merges(vectors: Any, query: Any, for_s: float = 25.0) -> None:
    partition = make_partition(IndexSettings("Flat", device=DEVICE), "cosine", 64, vectors)
    state = {"view": partition.with_rows(vectors[:30_000], np.arange(30_000))}
    until, searches = time.monotonic() + for_s, [0] * 8
    errors: list[Exception] = []

    def search(number: int) -> None:
        while time.monotonic() < until and not errors:
            try:
                state["view"].search(query[:16], 10)
                searches[number] += 1
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=search, args=(number,)) for number in range(8)]
    free = torch.cuda.mem_get_info()[0]
    for thread in threads:
        thread.start()
    merges, at = 0, 30_000
    while time.monotonic() < until and not errors:
        state["view"] = state["view"].without(np.arange(at - 30_000, at - 29_000))
        at += 1000
        state["view"] = state["view"].with_rows(vectors[np.arange(at - 1000, at) % 50_000], np.arange(at - 1000, at))
        state["view"] = state["view"].compacted()
        merges += 1
    for thread in threads:
        thread.join()
    lost = (free - torch.cuda.mem_get_info()[0]) / 1e6
    note(searches=sum(searches), merges=merges, errors=[str(error) for error in errors], memory_lost_mb=lost)
    assert not errors


def nccl() -> None:
    """Maps trained by one and by two ranks are those of one process on the CPU, up to the rounding of sums."""
    for ranks in (1, 2):
        if ranks > torch.cuda.device_count():
            raise SystemExit(f"{ranks} ranks need {ranks} GPUs; this machine has {torch.cuda.device_count()}")
        trained_alike("nccl", ranks)


def trained_alike(backend: str, ranks: int) -> None:
    """Compare maps of ``ranks`` processes with those of this one."""
    with TemporaryDirectory() as folder:
        alone = _maps("cpu")
        spawn(_rank, (backend, ranks, folder), ranks)
        together = dict(np.load(Path(folder) / "maps.npz"))
    differences = {
        name: float(abs(together[name] - weight).max() / abs(weight).max()) for name, weight in alone.items()
    }
    note(backend=backend, ranks=ranks, largest_differences_of_weights=differences)
    assert max(differences.values()) < 1e-3, "other maps"


def _rank(rank: int, backend: str, ranks: int, folder: str) -> None:
    store = FileStore(f"{folder}/store", ranks)
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    found = _maps(device)
    if rank == 0:
        np.savez(f"{folder}/maps.npz", **found)
    dist.destroy_process_group()


def _maps(device: str) -> dict[str, Any]:
    """Weights of three trained maps, by name of the method."""
    rng, label = np.random.default_rng(0), np.arange(480) % 24
    centres = rng.normal(size=(24, 16))
    train = {model: (centres[label] + rng.normal(size=(480, 16))).astype(np.float32) for model in ("old", "new")}
    fits = FitSettings(
        heads=HeadTraining(epochs=2, classes=8, items=4), transforms=TransformTraining(epochs=2, batch=32, hidden=16)
    )
    found = {}
    for method in find_methods(("rqt", "rm", "fct")):
        assert method.fit is not None
        network = method.fit.fit(TrainSet(train, label), fits, "cosine", torch.device(device)).network
        found[method.name] = max((p.detach().cpu().numpy() for p in network.parameters()), key=np.size)
    return found


def memory() -> None:
    """A replay beside another program that leaves 4 GB: one gallery is kept, one is not, and the bits are the same."""
    room, rng = 4 << 30, np.random.default_rng(0)
    label, of_query = rng.integers(0, 900, 1_200_000), rng.integers(0, 900, 64)
    systems = [
        rb.RetrievalSystem(*(rng.standard_normal((n, 384), np.float32) for n in (64, len(label)))) for _ in range(2)
    ]
    truth, order = rb.GroundTruth.from_labels(of_query, label), rng.permutation(len(label))
    taken = torch.empty(max(0, torch.cuda.mem_get_info()[0] - room), dtype=torch.uint8, device=DEVICE)
    forms = [ProductForm.of(system, "cosine") for system in systems]
    kept = [tiles.keep for tiles in make_tiles(forms, DEVICE)]
    pair = rb.UpgradePair(systems[0], systems[1])
    here, there = (rb.replay(pair, truth, order, 5, ("mAP@100",), device=device) for device in ("cpu", DEVICE))
    np.testing.assert_array_equal(there.per_query["mAP@100"], here.per_query["mAP@100"])
    note(gb_taken_by_others=taken.nbytes / 1e9, kept=kept)
    assert sorted(kept) == [False, True]


def tests() -> None:
    """The project's tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "gpu", "tests/engine"]
    subprocess.run(command, env=os.environ | {"GPU_TESTS": "1"}, check=True)


def drill() -> None:
    """Images are trained, embedded, simulated and drilled by the commands of docs/gpu.md, with indexes on the GPU."""
    with TemporaryDirectory() as folder:
        for command in drill_commands(Path(folder)):
            subprocess.run([sys.executable, "-m", "ray_backfill", *command], check=True)
        note(report=(Path(folder) / "drill/live/report.html").exists())


def drill_commands(folder: Path) -> list[list[str]]:
    """Arguments of a small run on GPUs, and of a drill of its embeddings with both indexes on one."""
    images = "--images.train-images 4000 --images.landmarks 50 --images.gallery-images 3000 --images.queries 200"
    train = "--old.training.epochs 3 --new.training.epochs 3 --methods old new rm fct bct procrustes_gallery"
    shards = "--live.method rm_naive --live.shards.number 1 --live.traffic.rate-per-s 50"
    kinds = "--live.old-index.kind Flat --live.new-index.kind IVF16,Flat"
    devices = "--live.old-index.device cuda --live.new-index.device cuda"
    return [
        ["simulate", *images.split(), *train.split(), "--device", "cuda", "--out", str(folder / "run")],
        [
            *("drill", "--data", str(folder / "run/embeddings"), *shards.split(), *kinds.split(), *devices.split()),
            *("--out", str(folder / "drill")),
        ],
    ]


PIECES: dict[str, Callable[[], None]] = {
    piece.__name__: piece for piece in (stack, products, curves, faiss, nccl, memory, speed, text, tests, drill)
}
# What a pretended device can run.
PRETENDED = ("products", "curves")
_BEGIN, _END = "<!-- written by make gpu -->", "<!-- to here -->"


def write_page(page: Path, results: dict[str, str]) -> None:
    """Replace what earlier runs wrote into the page about these pieces. results: piece -> what it printed."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    written, _, after = rest.partition(_END)
    of_piece = dict(line.strip().split(": ", 1) for line in written.splitlines() if line.startswith("    "))
    where = f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, torch {torch.__version__}"
    of_piece |= {name: f"{where}: {each}" for name, each in results.items()}
    rows = "\n".join(f"    {name}: {of_piece.get(name, 'not run')}" for name in PIECES)
    page.write_text(f"{before}{_BEGIN}\n\n{rows}\n\n{_END}{after}", encoding="utf-8")


def run_each(names: list[str], page: Path | None) -> int:
    """Run each piece in a process of its own, ten minutes at most; returns the number of those that failed."""
    failed = 0
    for name in names:
        began = time.monotonic()
        result = run_piece([sys.executable, "-m", "benchmarks.gpu", name, "--here"])
        failed += result.startswith("FAILED")
        print(f"{name} ({time.monotonic() - began:.0f} s): {result}", flush=True)
        if page is not None:
            write_page(page, {name: result})
    return failed


def run_piece(command: list[str], limit_s: float = 600) -> str:
    """What a piece printed, in one line; if it fails or hangs, the end of that and of its errors."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as piece:
        try:
            out, errors = piece.communicate(timeout=limit_s)
            problem = f"exit code {piece.returncode}" if piece.returncode else ""
        except subprocess.TimeoutExpired:
            os.killpg(piece.pid, signal.SIGKILL)  # with the processes that it has started
            out, errors = piece.communicate()
            problem = f"no end in {limit_s:g} s"
    if not problem:
        return " ".join(out.splitlines())
    return " ".join([f"FAILED ({problem}):", *out.splitlines()[-3:], *errors.splitlines()[-1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", choices=[[], *PIECES], help="by default all", metavar="piece")
    parser.add_argument("--pretend", action="store_true", help="run what a pretended device can, and list the rest")
    parser.add_argument("--here", action="store_true", help="in this process, without a limit of time")
    parser.add_argument("--page", type=Path, help="into which page the results are written")
    given = parser.parse_args()
    names = given.pieces or list(PIECES)
    if given.pretend:
        pretend([name for name in names if name in PRETENDED])
        print(f"not run, because they need a GPU: {', '.join(name for name in PIECES if name not in PRETENDED)}")
        return
    if not torch.cuda.is_available():
        parser.exit(2, f"error: {read_stack().problem(1)}\n")
    if not given.here:
        sys.exit(1 if run_each(names, given.page) else 0)
    for name in names:
        PIECES[name]()


def pretend(names: list[str]) -> None:
    """Run pieces at a fiftieth of their sizes on a device that is pretended."""
    global DEVICE, SCALE
    SCALE = 0.02
    with pretended() as DEVICE:
        for name in names:
            PIECES[name]()


if __name__ == "__main__":
    main()
