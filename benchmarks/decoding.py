"""Cost of decoding one image, and the savings and losses of JPEG drafts and reducing gaps."""

import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.galleries import header, row
from benchmarks.timing import cpu_s
from ray_backfill.images.datasets.landmarks import render
from ray_backfill.images.decode import decode

SIDE = 224
# Sizes of photographs: typical of ImageNet, of thumbnails, and of small cameras.
SIZES = ((500, 375), (1024, 768), (2048, 1536))
_QUALITY = 90


def photographs(size: tuple[int, int], number: int) -> list[bytes]:
    """Landmarks rendered at 512 pixels, resized, with fine grain added, as JPEG."""
    found, rng = [], np.random.default_rng(0)
    for image in render(0, np.arange(number), np.arange(number), 512, 1.0):
        large = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC), np.int16)
        grain = rng.integers(-6, 7, large.shape, dtype=np.int16)
        stream = io.BytesIO()
        Image.fromarray(np.clip(large + grain, 0, 255).astype(np.uint8)).save(stream, "JPEG", quality=_QUALITY)
        found.append(stream.getvalue())
    return found


@dataclass(frozen=True)
class Way:
    """A variant of ``decode``, with drafts of at least ``draft`` times the side (0: none) and a reducing gap."""

    draft: float = 1.5
    gap: float | None = 3.0
    resample: Image.Resampling = Image.Resampling.BILINEAR


def variant(data: bytes, way: Way) -> NDArray[np.uint8]:
    """One image, decoded and resized by this variant."""
    with Image.open(io.BytesIO(data)) as file:
        if way.draft:
            file.draft("RGB", (int(way.draft * SIDE), int(way.draft * SIDE)))
        file.load()
        image = file.resize((SIDE, SIDE), way.resample, reducing_gap=way.gap)
    return np.asarray(image)


def decode_only(data: bytes, draft: float) -> Image.Image:
    with Image.open(io.BytesIO(data)) as file:
        if draft:
            file.draft("RGB", (int(draft * SIDE), int(draft * SIDE)))
        file.load()
        return file


def psnr(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio of two pictures in dB: 255 squared over the mean squared difference."""
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


# Minimum draft size in sides, the reducing gap, and the filter (bilinear unless named).
WAYS = {
    "ours: draft of 1.5 sides, gap 3": Way(),
    "whole, gap 3": Way(draft=0),
    "whole, no gap": Way(draft=0, gap=None),
    "draft of 2 sides, gap 3": Way(draft=2),
    "draft of 1 side, gap 3": Way(draft=1),
    "Lanczos, draft of 2 sides, gap 3": Way(draft=2, resample=Image.Resampling.LANCZOS),
}
OURS = "ours: draft of 1.5 sides, gap 3"


def _measured(images: list[bytes], way: Way) -> tuple[float, float, float]:
    """CPU seconds per image, those of decoding alone, and the PSNR against full decoding and one-step resizing."""
    whole = cpu_s(lambda: [variant(data, way) for data in images]) / len(images)
    alone = cpu_s(lambda: [decode_only(data, way.draft) for data in images]) / len(images)
    plain = replace(way, draft=0, gap=None)
    return whole, alone, float(np.mean([psnr(variant(data, way), variant(data, plain)) for data in images]))


def decoding(number: int, files: Path | None) -> dict[str, tuple[float, str]]:
    """Print the cost of each variant; returns kind of image -> seconds per image with ours, and the bottleneck.

    files: folder of image files to decode as well.
    """
    found: dict[str, tuple[float, str]] = {}
    print(f"\n## Decoding to {SIDE} x {SIDE}\n")
    header("JPEG", "KB", "way", "ms", "of it without resizing", "img/s a core", "PSNR to whole, no gap (dB)")
    for width, height in SIZES:
        images = photographs((width, height), number)
        kilobytes = np.mean([len(data) for data in images]) / 1000
        for name, way in WAYS.items():
            took, alone, likeness = _measured(images, way)
            row(f"{width} x {height}", f"{kilobytes:,.0f}", name, f"{1e3 * took:.2f}", f"{1e3 * alone:.2f}",
                f"{1 / took:,.0f}", f"{likeness:.1f}")  # fmt: skip
            if name == OURS:
                most = "the JPEG decoder" if alone > took / 2 else "resizing"
                found[f"JPEG of {width} x {height} to {SIDE} x {SIDE}"] = took, most
    paths = sorted(path for path in files.rglob("*") if path.suffix in (".png", ".jpg"))[: 50 * number] if files else []
    if files and paths:
        data_of = [path.read_bytes() for path in paths]
        took = cpu_s(lambda: [decode(data, 32, 1) for data in data_of]) / len(data_of)
        found[f"files of {files.name} to 32 x 32, grey"] = took, "Pillow"
    return found
