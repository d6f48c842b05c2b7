"""Bottleneck analysis: images per second of decoding, model and writing, and which of them limits the rate.

Actors and workers measure ``Work``; the rest is arithmetic on it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Work:
    """Images processed, and the seconds spent, summed over all threads or actors.

    decode_s: decoding, including waiting for files; decode_cpu_s: its CPU time. wait_s: the model waited for pixels.
    model_s: the model computed. write_s: writing results; write_cpu_s: its CPU time. cpu_s: CPU time of the process.
    """

    images: int = 0
    decode_s: float = 0.0
    decode_cpu_s: float = 0.0
    wait_s: float = 0.0
    model_s: float = 0.0
    write_s: float = 0.0
    write_cpu_s: float = 0.0
    cpu_s: float = 0.0


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
    the time that the model waited for pixels.
    """

    decode_per_cpu: float
    model_per_device: float
    write_per_device: float
    cpus: int
    on_gpu: bool
    shares: dict[str, float]
    waited: float

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
        """One readable line: what limits the rate, and what would change it."""
        if not self.on_gpu:
            shares = {"decode": "decoding", "model": "the models", "write": "writing"}
            order = sorted(self.shares, key=lambda name: -self.shares[name])
            parts = [f"{shares[name]} {100 * self.shares[name]:.0f} %" for name in order]
            return f"CPU only, {self.limit}-bound: of the CPU time {', '.join(parts)}"
        cpus = f"{self.cpus} CPU{'s' * (self.cpus != 1)} per GPU"
        if self.limit == "decode":
            return (
                f"decode-bound: {cpus} give{'s' * (self.cpus == 1)} {self.fed:,.0f} img/s, "
                f"{self.cpus_needed} would give {self.consumed:,.0f}"
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
            "limit": self.limit,
            "bottleneck": self.sentence(),
        }


def feeding(work: Work, cpus: int, on_gpu: bool) -> Feeding | None:
    """The rates behind ``work``; None if nothing was measured. cpus: decoders per device."""
    if not work.images:
        return None
    # A model on the CPU shares the cores: its CPU time counts, not the time that others occupied them.
    model_cpu_s = max(work.cpu_s - work.decode_cpu_s - work.write_cpu_s, 0.0)
    seconds = {"decode": work.decode_cpu_s, "model": model_cpu_s, "write": work.write_cpu_s}
    spent = sum(seconds.values())
    return Feeding(
        decode_per_cpu=_rate(work.images, work.decode_s if on_gpu else work.decode_cpu_s),
        model_per_device=_rate(work.images, max(work.model_s, 1e-9)),
        write_per_device=_rate(work.images, work.write_s),
        cpus=cpus,
        on_gpu=on_gpu,
        shares={name: value / spent if spent else 0.0 for name, value in seconds.items()},
        waited=work.wait_s / max(work.wait_s + work.model_s + work.write_s, 1e-9),
    )


def _rate(images: int, seconds: float) -> float:
    return images / seconds if seconds > 0 else math.inf
