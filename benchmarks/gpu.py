"""What only a GPU can tell: equal bits, the error bound on cuBLAS, faiss copies under load, and ratios.

Each piece needs torch with CUDA; ``faiss`` also faiss-gpu. Nothing is skipped: a piece that cannot run fails.

    python -m benchmarks.gpu stack products curves speed text faiss
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import ray_backfill as rb
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

DEVICE = "cuda"


def note(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps({key: round(x, 5) if isinstance(x, float) else x for key, x in facts.items()}), flush=True)


def stack() -> None:
    """Torch sees the GPU, and float32 products are exact where TF32 would round them."""
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
            rng = np.random.default_rng(cases)
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
        bare = _bare(pair)
        note(
            shape=f"{n_queries} x {n_items} x {dims}, {n_right} right, {metrics[0]}", cpu_s=times["cpu"],
            gpu_s=times[DEVICE], products_s=bare, cpu_by_gpu=times["cpu"] / times[DEVICE],
            gpu_by_products=times[DEVICE] / bare,
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
            same = np.mean([len(np.intersect1d(a, b)) for a, b in zip(here.position, there.position, strict=True)]) / 10
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


PIECES: dict[str, Callable[[], None]] = {
    "stack": stack, "products": products, "curves": curves, "speed": speed, "text": text, "faiss": faiss,
}  # fmt: skip


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU")
    for name in sys.argv[1:] or PIECES:
        began = time.monotonic()
        PIECES[name]()
        note(piece=name, took_s=time.monotonic() - began)
