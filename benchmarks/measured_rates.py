"""What ``ray-backfill measure`` predicts beside what an embedding run reaches: signed errors, a Markdown table.

    python -m benchmarks.measured_rates                          # 5 s a stage, runs of about 15 s: up to 6 minutes
    python -m benchmarks.measured_rates --seconds 0.3 --run 1    # a smoke test

Four kinds of models, made here with random weights. Each is measured on one collection of generated texts, and embeds
another one, of other texts, by Ray actors. Three laws: the slowest stage sets the pace, which holds where all stages
run at the same time; the stages follow each other, which holds where they wait for the same core; and what one process
reached with all stages together. The rate of a run is that of its manifest, without the start of its actors.
"""

import argparse
import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.core.stages import read_json
from ray_backfill.encode.items import ItemSettings, ItemSources, write_items
from ray_backfill.encode.kinds import parse_spec
from ray_backfill.encode.part import EncodeRequest
from ray_backfill.encode.stage import embed_items
from ray_backfill.plan.measure import MeasureSettings, measure
from ray_backfill.plan.rates import STAGES, TOGETHER
from ray_backfill.workers.session import session
from ray_backfill.workers.settings import EmbedActors

VOCABULARY = [f"word{number}" for number in range(2_000)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WIDTH, MOST_ITEMS = 128, 150_000


def hashed(texts: list[str]) -> Any:
    """Counts of hashed words."""
    vectors = np.full((len(texts), 64), 1e-3, np.float32)
    for row, text in enumerate(texts):
        for word in text.split():
            vectors[row, int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest()) % 64] += 1
    return vectors


def bert(folder: Path) -> str:
    """A BERT of two layers."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    (folder / "vocab.txt").write_text("\n".join(SPECIAL + VOCABULARY), encoding="utf-8")
    size = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    BertModel(BertConfig(vocab_size=len(SPECIAL + VOCABULARY), **size)).eval().save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    return f"hf:{folder}"


def static(folder: Path) -> str:
    """A table of word vectors of sentence-transformers, with the tokenizer of the BERT."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    bert(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=WIDTH)], device="cpu")
    made.save(str(folder / "static"))
    return f"sentence-transformers:{folder / 'static'}"


def onnx_graph(folder: Path) -> str:
    """The same table as a graph of ONNX, whose vectors of tokens are pooled by their mean."""
    from onnx import TensorProto, helper, numpy_helper

    bert(folder)
    table = np.random.default_rng(0).normal(size=(len(SPECIAL + VOCABULARY), WIDTH)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["states"])], "words",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "n"])],
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, ["b", "n", WIDTH])],
        [numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "words.onnx").write_bytes(made.SerializeToString())
    return f"onnx:{folder / 'words.onnx'}"


KINDS: dict[str, Callable[[Path], str]] = {
    "python:, hashed words": lambda _: "python:benchmarks.measured_rates:hashed",
    "hf:, a BERT of 2 layers": bert,
    "sentence-transformers:, word vectors": static,
    "onnx:, word vectors": onnx_graph,
}


def collection(file: Path, items: int, seed: int) -> ItemSources:
    """Texts of 5 to 80 words."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(VOCABULARY, rng.integers(5, 80))) for _ in range(items)]
    pq.write_table(pa.table({"id": np.arange(items), "text": texts}), file)
    return ItemSources("text", str(file))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--run", type=float, default=15.0, help="seconds that a run should take, about")
    parser.add_argument("--only", default="", help="models whose title has these words")
    given = parser.parse_args()
    rows = list[str]()
    with TemporaryDirectory() as scratch, session():
        root = Path(scratch)
        one = collection(root / "one.parquet", 5_000, 1)
        for number, (kind, make) in enumerate(row for row in KINDS.items() if given.only in row[0]):
            (root / str(number)).mkdir()
            spec, actor = parse_spec(make(root / str(number))), EmbedActors(number=1)
            rates = measure(spec, one, MeasureSettings(given.seconds), ItemSettings(), actor, root)
            per_s = {rate.stage: rate.items_per_s for rate in rates.stages}
            alone = [per_s[stage] for stage in STAGES]
            slowest, in_turn, together = min(alone), 1 / sum(1 / rate for rate in alone), per_s[TOGETHER]
            for actors in (1, 2):
                items = int(min(MOST_ITEMS, max(500, in_turn * actors * given.run)))
                other = collection(root / "other.parquet", items, 2 + actors)
                folder = root / f"{number}-{actors}"
                written = write_items(folder / "items", other, ItemSettings(draw_queries=10, draw_train=0))
                request = EncodeRequest(written, "text", {"new": spec})
                made = embed_items(folder / "embeddings", request, EmbedActors(number=actors))
                reached = read_json(made / "manifest.json")["embedding"]["items_per_s"]
                errors = [f"{100 * (actors * law / reached - 1):+.0f} %" for law in (slowest, in_turn, together)]
                stages = [f"{per_s[stage]:,.0f}" for stage in STAGES]
                rates_of = [f"{rate:,.0f}" for rate in (actors * slowest, actors * in_turn, actors * together, reached)]
                rows.append(f"| {' | '.join((kind, *stages, str(actors), f'{items:,}', *rates_of, *errors))} |")
                print(rows[-1], flush=True)
    heads = (
        "model",
        *STAGES,
        "actors",
        "items",
        "slowest stage",
        "one after the other",
        "together",
        "reached",
        *["error"] * 3,
    )
    print(f"\nTexts per second\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
