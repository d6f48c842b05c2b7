"""Text: two embedding models of different strength for a collection of abstracts with relevance judgements.

    python examples/text/cranfield.py CRANFIELD_FOLDER     # writes old.parquet, new.parquet and more into runs/text
    ray-backfill import --out runs/text/data --gallery runs/text/old.parquet runs/text/new.parquet --drop-broken
    ray-backfill import --out runs/text/data --queries runs/text/queries.parquet
    ray-backfill import --out runs/text/data --train runs/text/titles.parquet --drop-broken
    ray-backfill simulate --data runs/text/data --out runs/text/run --truth qrels runs/text/qrels.txt \\
        --metrics nDCG@10 recall@100 MRR@10 --methods two_models --merges best raw

The folder has cran.all.1400.xml, cran.qry.xml and cranqrel.trec.txt of the Cranfield collection. The models are TF-IDF
and a truncated singular value decomposition (latent semantic analysis): the old one has 32 dimensions and has seen half
of the abstracts, the new one has 256 and has seen all. Maps between them are fitted on the titles.
"""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

Model = Callable[[list[str]], NDArray[np.float32]]


def read_texts(path: Path, item: str, part: str) -> list[str]:
    """The text of one part of each item, in the order of the file."""
    items = re.findall(rf"<{item}>(.*?)</{item}>", path.read_text(encoding="utf-8"), re.DOTALL)
    found = (re.search(rf"<{part}>(.*?)</{part}>", each, re.DOTALL) for each in items)
    return [" ".join(match[1].split()) if match else "" for match in found]


def train_model(texts: list[str], dimensions: int) -> Model:
    """Latent semantic analysis: TF-IDF, then a singular value decomposition."""
    model = make_pipeline(
        TfidfVectorizer(stop_words="english", sublinear_tf=True), TruncatedSVD(dimensions, random_state=0)
    )
    model.fit(texts)
    return lambda given: model.transform(given).astype(np.float32)


def write(path: Path, texts: list[str], **models: Model) -> None:
    """A Parquet file of ids, texts and embeddings; ids count from 1, as the judgements do."""
    columns = {"id": np.arange(1, len(texts) + 1), "text": texts}
    pq.write_table(pa.table(columns | {name: list(model(texts)) for name, model in models.items()}), path)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "cran.all.1400.xml").is_file():
        sys.exit("error: name the folder with cran.all.1400.xml, cran.qry.xml and cranqrel.trec.txt")
    source, out = Path(sys.argv[1]), Path("runs/text")
    out.mkdir(parents=True, exist_ok=True)
    abstracts = read_texts(source / "cran.all.1400.xml", "doc", "text")
    titles = read_texts(source / "cran.all.1400.xml", "doc", "title")
    old, new = train_model(abstracts[::2], 32), train_model(abstracts, 256)
    write(out / "old.parquet", abstracts, old=old)
    write(out / "new.parquet", abstracts, new=new)
    write(out / "queries.parquet", read_texts(source / "cran.qry.xml", "top", "title"), old=old, new=new)
    write(out / "titles.parquet", titles, old=old, new=new)
    shutil.copy(source / "cranqrel.trec.txt", out / "qrels.txt")
    print(f"{len(abstracts):,} abstracts; now run the commands at the top of {Path(__file__).name}")
