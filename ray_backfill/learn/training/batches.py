"""Images on their way to a model: decoded ahead, as random views, and what limits their rate.

Actors and workers measure ``Work``; the rest of the bottleneck analysis is arithmetic on it: images per second of
decoding, model and writing.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.images.reading import DecodeTimes, read_ahead
from ray_backfill.images.source import ImageSource
from ray_backfill.learn.training.settings import Augmentation

# Images whose decoded size (over all workers of a machine) is below this limit are decoded once and kept.
CACHE_BYTES = 1 << 30


class PixelFeed:
    """Batches of pixels for row numbers of the train split. ``broken``: row -> reason, for the images seen so far.

    ``times``: time spent on decoding batches and on waiting for them so far; zero if all images are in memory.
    """

    def __init__(
        self, source: ImageSource, rows: NDArray[np.int64], threads: int = 1, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """rows: all rows that may be requested. threads: decoders that work ahead if the images exceed cache_bytes."""
        self.broken: dict[int, str] = {}
        self.times = DecodeTimes()
        self._source, self._threads = source, threads
        self._cache: NDArray[np.uint8] | None = None
        if len(rows) * source.image_size**2 * source.channels <= cache_bytes:
            chunks = [rows[i : i + 1024] for i in range(0, len(rows), 1024)]
            self._cache = np.concatenate([pixels for pixels, _ in self._decoded(chunks, DecodeTimes())])
            self._place = np.zeros(int(rows.max()) + 1, np.int64)
            self._place[rows] = np.arange(len(rows))

    def batches(self, batches: Iterable[NDArray[np.int64]]) -> Iterator[tuple[Tensor, NDArray[np.bool_]]]:
        """For each array of B rows: (B, S, S, C) uint8, and (B,) which of them are readable; the others are zero."""
        if self._cache is None:
            for pixels, readable in self._decoded(batches, self.times):
                yield torch.from_numpy(pixels), readable
            return
        broken = list(self.broken)
        for rows in batches:
            yield torch.from_numpy(self._cache[self._place[rows]]), ~np.isin(rows, broken)

    def _decoded(
        self, batches: Iterable[NDArray[np.int64]], times: DecodeTimes
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.bool_]]]:
        for rows, pixels in read_ahead(self._source, "train", batches, self._threads, times):
            self.broken.update({int(rows[i]): reason for i, reason in pixels.broken.items()})
            yield pixels.pixels_BSSC, ~np.isin(np.arange(len(rows)), list(pixels.broken))


# Shape (B, ...) -> random numbers from 0 to 1.
Draw = Callable[..., Tensor]


def augment(pixels_BCSS: Tensor, settings: Augmentation, draw: Draw | None = None) -> Tensor:
    """One random view of each image by one bilinear resampling.

    draw: the random numbers of the images; default: torch's global generator.
    """
    n, device = len(pixels_BCSS), pixels_BCSS.device

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device) if draw is None else draw(*shape).to(device)

    def uniform(limit: float) -> Tensor:
        return (rand(n) * 2 - 1) * limit

    angle = uniform(math.radians(settings.rotate_deg))
    scale = 1 + uniform(settings.zoom)
    mirror = torch.where(rand(n) < 0.5, -1.0, 1.0) if settings.flip else torch.ones_like(scale)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = [
        torch.stack([mirror * cos, -sin, uniform(2 * settings.shift)], dim=1),
        torch.stack([mirror * sin, cos, uniform(2 * settings.shift)], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(pixels_BCSS.shape), align_corners=False)
    views = F.grid_sample(pixels_BCSS, grid, mode="bilinear", padding_mode="border", align_corners=False)
    if not settings.colour:
        return views
    # Contrast around each channel's mean, then brightness.
    contrast, brightness = (1 + (rand(*views.shape[:2], 1, 1) * 2 - 1) * settings.colour for _ in range(2))
    mean = views.mean((2, 3), keepdim=True)
    return (((views - mean) * contrast + mean) * brightness).clamp(0, 1)


def own_view(pixels_BCSS: Tensor, settings: Augmentation, ids_B: NDArray[np.int64], view: int, seed: int) -> Tensor:
    """The view of each image that its id, the number of the view and the seed determine.

    It is the same in every batch, part and process.
    """
    rngs = [np.random.default_rng([seed, view, int(image_id) % 2**64]) for image_id in ids_B]

    def draw(_: int, *shape: int) -> Tensor:
        return torch.from_numpy(np.array([rng.random(shape) for rng in rngs], np.float32))

    return augment(pixels_BCSS, settings, draw)


@dataclass(frozen=True)
class Work:
    """Images processed, broken ones among them, and the seconds spent, summed over all threads or actors.

    decode_s: decoding, including waiting for files; decode_cpu_s: its CPU time. wait_s: the model waited for pixels.
    model_s: the model computed. write_s: writing results; write_cpu_s: its CPU time. cpu_s: CPU time of the process.
    decoded, lent, lent_s, lent_cpu_s, pixel_bytes: see ``DecodeTimes``; what is decoded twice counts twice.
    """

    images: int = 0
    broken: int = 0
    decode_s: float = 0.0
    decode_cpu_s: float = 0.0
    wait_s: float = 0.0
    model_s: float = 0.0
    write_s: float = 0.0
    write_cpu_s: float = 0.0
    cpu_s: float = 0.0
    decoded: int = 0
    lent: int = 0
    lent_s: float = 0.0
    lent_cpu_s: float = 0.0
    pixel_bytes: int = 0


def total(works: Iterable[Work]) -> Work:
    """The sum of each field; zeros for an empty iterable."""
    listed = list(works)
    return Work(**{field.name: sum(getattr(work, field.name) for work in listed) for field in fields(Work)})


@dataclass(frozen=True)
class Feeding:
    """Images per second that each part of the work could reach alone.

    decode_per_cpu: rate of one decoder. model_per_device, write_per_device: rates of one actor. A part that took no
    time has an infinite rate, such as decoding when all pixels are in memory. cpus: decoders per device.
    on_gpu: the model has its own device; otherwise all parts share the cores, and shares of CPU time say more than
    rates. shares: shares of the CPU time: decoding, writing, and the model with everything else. waited: share of
    the time that the model waited for pixels. image_bytes: size of a decoded image. lent_cpus: how many of ``cpus`` are
    those of ``decode_cpus``; lent: share of the images that these decoded; lent_speed: the rate of one of them, with
    the transfer, over that of the others.
    """

    decode_per_cpu: float
    model_per_device: float
    write_per_device: float
    cpus: int
    on_gpu: bool
    shares: dict[str, float]
    waited: float
    image_bytes: float = 0.0
    lent_cpus: int = 0
    lent: float = 0.0
    lent_speed: float = 0.0

    @property
    def fed(self) -> float:
        """Images per second that the decoders of one device deliver."""
        return self.cpus * self.decode_per_cpu

    @property
    def consumed(self) -> float:
        """Images per second that one device could process if it never waited. An actor either computes or writes."""
        return 1 / (1 / self.model_per_device + 1 / self.write_per_device)

    @property
    def limit(self) -> str:
        """The part that limits the rate: decode, model or write."""
        if not self.on_gpu:
            return max(self.shares, key=lambda name: self.shares[name])
        if self.fed < self.consumed:
            return "decode"
        return "model" if self.model_per_device <= self.write_per_device else "write"

    @property
    def cpus_needed(self) -> int:
        """Number of decoders with which the device would never wait."""
        return max(1, math.ceil(self.consumed / self.decode_per_cpu - 1e-9))

    def sentence(self) -> str:
        """One readable line: what limits the rate, what would change it, and what CPUs of other nodes did."""
        if not self.lent_cpus:
            return self._limited()
        speed = f", each {self.lent_speed:.2f} times as fast as one of its own" if self.lent_speed else ""
        return f"{self._limited()}; {self.lent_cpus} CPUs elsewhere decoded {100 * self.lent:.0f} %{speed}"

    def _limited(self) -> str:
        if not self.on_gpu:
            shares = {"decode": "decoding", "model": "the models", "write": "writing"}
            order = sorted(self.shares, key=lambda name: -self.shares[name])
            parts = [f"{shares[name]} {100 * self.shares[name]:.0f} %" for name in order]
            return f"CPU only, {self.limit}-bound: of the CPU time {', '.join(parts)}"
        cpus = f"{self.cpus} CPU{'s' * (self.cpus != 1)} per GPU"
        if self.limit == "decode":
            elsewhere = self.cpus_needed - (self.cpus - self.lent_cpus)
            return (
                f"decode-bound: {cpus} give{'s' * (self.cpus == 1)} {self.fed:,.0f} img/s, "
                f"{self.cpus_needed} would give {self.consumed:,.0f}; with decode-cpus {elsewhere} other nodes would "
                f"send {elsewhere * self.decode_per_cpu * self.image_bytes / 1e9:.2g} GB/s"
            )
        takes = f"{self.limit}-bound: a GPU takes {self.consumed:,.0f} img/s"
        if math.isinf(self.fed):
            return f"{takes}, all pixels are in memory"
        spare = f"; {self.cpus_needed} would do" if self.cpus_needed < self.cpus else ""
        return f"{takes}, {cpus} could give {self.fed:,.0f}{spare}"

    def facts(self) -> dict[str, Any]:
        """The facts for a manifest, without infinite rates."""
        rates = {
            "decode_images_per_s_per_cpu": self.decode_per_cpu,
            "model_images_per_s_per_device": self.model_per_device,
            "write_images_per_s_per_device": self.write_per_device,
        }
        return {name: round(rate, 1) for name, rate in rates.items() if math.isfinite(rate)} | {
            "cpus_per_device": self.cpus,
            "cpu_shares": {name: round(share, 3) for name, share in self.shares.items()},
            "waited_for_pixels": round(self.waited, 3),
            **({"decoded_elsewhere": round(self.lent, 3)} if self.lent_cpus else {}),
            "limit": self.limit,
            "bottleneck": self.sentence(),
        }


def feeding(work: Work, cpus: int, on_gpu: bool, lent_cpus: int = 0) -> Feeding | None:
    """The rates behind ``work``; None if nothing was measured. cpus: decoders per device, lent ones included."""
    if not work.images:
        return None
    # A model on the CPU shares the cores: its CPU time counts, not the time that others occupied them.
    model_cpu_s = max(work.cpu_s - work.decode_cpu_s - work.write_cpu_s, 0.0)
    seconds = {"decode": work.decode_cpu_s + work.lent_cpu_s, "model": model_cpu_s, "write": work.write_cpu_s}
    spent = sum(seconds.values())
    own, own_s = work.decoded - work.lent, work.decode_s - work.lent_s
    return Feeding(
        decode_per_cpu=_rate(work.images, work.decode_s if on_gpu else work.decode_cpu_s + work.lent_cpu_s),
        model_per_device=_rate(work.images, max(work.model_s, 1e-9)),
        write_per_device=_rate(work.images, work.write_s),
        cpus=cpus,
        on_gpu=on_gpu,
        shares={name: value / spent if spent else 0.0 for name, value in seconds.items()},
        waited=work.wait_s / max(work.wait_s + work.model_s + work.write_s, 1e-9),
        image_bytes=work.pixel_bytes / max(work.decoded, 1),
        lent_cpus=lent_cpus,
        lent=work.lent / max(work.decoded, 1),
        lent_speed=(own_s / own) / (work.lent_s / work.lent) if own and work.lent and work.lent_s else 0.0,
    )


def _rate(images: int, seconds: float) -> float:
    return images / seconds if seconds > 0 else math.inf
