"""What `make gpu` runs, as far as a machine without one can: a pretended device, ranks of gloo, the page, limits."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_limits import CARDS, card_named, limits
from benchmarks.pretended import MixedDevicesError, pretended

ROOT = Path(__file__).parents[1]


def test_the_pretended_device_refuses_what_a_gpu_would() -> None:
    here = torch.ones(3, 4)
    with pretended() as device:
        there = here.to(device)
        made = torch.empty((3, 4), device=device)
        made[:] = 2
        made[0] = here[0]  # a copy
        mixed: list[Callable[[], Any]] = [
            lambda: there + here,
            lambda: here @ there.T,
            lambda: there[torch.zeros(1, dtype=torch.long)],
            lambda: torch.cat([here, there]),
        ]
        for wrong in mixed:
            with pytest.raises(MixedDevicesError):
                wrong()
        with pytest.raises(TypeError, match="copy it to the CPU first"):
            there.numpy()
        with pytest.raises((TypeError, RuntimeError)):
            np.asarray(there)
        assert there.device == made.device == torch.device(device)
        assert (there * 2).device == there.device
        assert (2 * there + torch.tensor(1.0)).cpu().tolist() == [[3.0] * 4] * 3, "numbers may be anywhere"
        assert made.cpu().tolist() == [[1.0] * 4, [2.0] * 4, [2.0] * 4]
        assert there.sum().item() == 12
        assert made.cpu().data_ptr() != made.cpu().data_ptr(), "a copy"


def test_products_and_curves_run_on_a_pretended_device() -> None:
    page = (ROOT / "docs/results/gpu.md").read_bytes()
    command = [sys.executable, "-m", "benchmarks.gpu", "--pretend"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    bound, curves, rest = done.stdout.splitlines()
    assert 0 < float(bound.split(": ")[1].rstrip("}")) < 1
    assert curves == '{"replays_with_equal_bits": 92}'
    assert rest.startswith("not run, because they need a GPU: stack, faiss, nccl, memory, speed")
    assert (ROOT / "docs/results/gpu.md").read_bytes() == page


def test_without_a_gpu_the_pieces_fail_in_one_line() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "stack"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: torch ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.heavy
def test_two_ranks_train_what_one_process_trains() -> None:
    code = "from benchmarks.gpu import trained_alike\nif __name__ == '__main__': trained_alike('gloo', 2)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)


def test_results_replace_those_of_the_same_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
    page = tmp_path / "gpu.md"
    page.write_text(f"# On a GPU\n\n{gpu._BEGIN}\n\nNone yet.\n\n{gpu._END}\n\n## More\n")
    for results in ({"stack": "first", "curves": "equal: 92"}, {"stack": "second"}):
        gpu.write_page(page, results)
    text = page.read_text()
    assert text.startswith("# On a GPU\n")
    assert text.endswith("\n## More\n")
    lines = {line.strip().split(": ")[0]: line for line in text.splitlines() if line.startswith("    ")}
    assert list(lines) == list(gpu.PIECES)
    assert lines["stack"].endswith(f", NVIDIA A100-SXM4-80GB, torch {torch.__version__}: second")
    assert lines["curves"].endswith("equal: 92"), "what other pieces found stays"
    assert lines["nccl"] == "    nccl: not run"
    assert gpu._BEGIN in (ROOT / "docs/results/gpu.md").read_text(), "there is a place for them"


def test_a_piece_that_fails_or_hangs_is_reported() -> None:
    def piece(code: str) -> list[str]:
        return [sys.executable, "-c", code]

    assert gpu.run_piece(piece("print(1); print(2)")) == "1 2"
    assert gpu.run_piece(piece("print(1); raise ValueError('no')")) == "FAILED (exit code 1): 1 ValueError: no"
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    began = time.monotonic()
    found = gpu.run_piece(piece(f"import subprocess, sys; print('began', flush=True); {child}.wait()"), limit_s=2)
    assert found == "FAILED (no end in 2 s): began"
    assert time.monotonic() - began < 60, "its child has gone, too"


def test_limits_are_those_of_the_data_sheet_by_hand() -> None:
    a100 = card_named("NVIDIA A100-SXM4-80GB")
    assert a100 is not None
    found = limits(a100, 20_000, 20_000, 128, is_cut=False, cores=16, undecided=1e-3)
    pairs = 2 * 20_000 * 20_000
    assert found.products == pytest.approx(2 * 128 * pairs / 16.575e12)
    assert found.products / pairs == pytest.approx(15e-12, rel=0.05), "15 ps a pair"
    assert found.memory == pytest.approx(16 * pairs / 1.6312e12)
    assert found.host == pytest.approx(1e-3 * pairs * 153.8e-9 / 16)
    assert found.upload == pytest.approx(2 * 4 * 20_000 * 128 / 25.6e9)
    assert found.seconds == max(vars(found).values())
    assert card_named("NVIDIA GeForce RTX 3090") is None
    assert len({card_named(f"NVIDIA {card.name}") for card in CARDS}) == len(CARDS)
