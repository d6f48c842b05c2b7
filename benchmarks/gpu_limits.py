"""What a replay on a GPU needs at least, estimated from the data sheets of the card and the work of the engine.

    python -m benchmarks.gpu_limits      # the table of docs/results/gpu.md

The smallest time of a shape is that of the largest of four: products, memory, the CPU's part, and copies to the card.
They can overlap, so it is no sum.
"""

from dataclasses import asdict, dataclass
from operator import itemgetter

# A share of the peak that large products of cuBLAS reach, and that long reads reach.
PRODUCTS, MEMORY = 0.85, 0.8
# Share of PCIe's rate that copies reach. Pageable memory, as replays copy it, reaches a quarter (docs/results/gpu.md).
UPLOAD = 0.8


@dataclass(frozen=True)
class Card:
    """tflops: float32 without tensor cores (TF32 is 8 times as fast, and errs too much). tb_per_s: of its memory.
    pcie_gb_per_s: of its connection, in one direction.

    Source: NVIDIA's data sheets.
    """

    name: str
    tflops: float
    tb_per_s: float
    pcie_gb_per_s: float


CARDS = (
    Card("A100-SXM4-40GB", 19.5, 1.555, 32),
    Card("A100-SXM4-80GB", 19.5, 2.039, 32),
    Card("A100 80GB PCIe", 19.5, 1.935, 32),
    Card("H100 PCIe", 51.2, 2.0, 64),
    Card("H100 80GB HBM3", 66.9, 3.35, 64),
    Card("H200", 66.9, 4.8, 64),
)


@dataclass(frozen=True)
class Limits:
    """Seconds of each part. host: exact distances of undecided pairs, on the CPU."""

    products: float
    memory: float
    host: float
    upload: float

    @property
    def seconds(self) -> float:
        return max(self.products, self.memory, self.host, self.upload)


def limits(
    card: Card, n_queries: int, n_items: int, dims: int, is_cut: bool, cores: int, undecided: float = 0.0
) -> Limits:
    """The limits of a replay of two systems, one order.

    undecided: share of all pairs that the error bound leaves open, each an exact distance on a core: 0.85 ns for each
    dimension and 45 ns (docs/log.md). Each product is written and read, 8 bytes; of whole rankings its place is,
    too.
    """
    pairs = 2 * n_queries * n_items
    return Limits(
        products=2 * pairs * dims / (PRODUCTS * card.tflops * 1e12),
        memory=(8 if is_cut else 16) * pairs / (MEMORY * card.tb_per_s * 1e12),
        host=undecided * pairs * (0.85e-9 * dims + 45e-9) / cores,
        upload=2 * 4 * n_items * dims / (UPLOAD * card.pcie_gb_per_s * 1e9),
    )


def card_named(name: str) -> Card | None:
    """The card of torch's device name, such as "NVIDIA A100-SXM4-80GB"; None if it is not listed."""
    return next((card for card in CARDS if card.name in name), None)


def main() -> None:
    """Print the limits of the benchmark's shapes for each card."""
    from benchmarks.gpu import SHAPES

    print("| queries x items x dimensions | " + " | ".join(card.name for card in CARDS) + " | largest part |")
    print("|---|" + "---|" * (len(CARDS) + 1))
    for n_queries, n_items, dims, _, metrics in SHAPES:
        found = [limits(card, n_queries, n_items, dims, "@100" in metrics[0], 16) for card in CARDS]
        largest = {max(asdict(each).items(), key=itemgetter(1))[0] for each in found}
        seconds = " | ".join(f"{each.seconds:.3f}" for each in found)
        print(f"| {n_queries:,} x {n_items:,} x {dims:,}, {metrics[0]} | {seconds} | {', '.join(sorted(largest))} |")


if __name__ == "__main__":
    main()
