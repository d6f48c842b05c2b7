"""Without torch and Ray, formulas are fitted, stored, loaded and applied; networks name the remedy."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from ray_backfill.core.stages import write_json
from ray_backfill.learn.models.apply import load_network, transform

SCRIPT = """
import sys
from pathlib import Path
for library in ("torch", "ray", "faiss", "transformers"):
    sys.modules[library] = None
import numpy as np
import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges import RAW
from ray_backfill.learn.methods import Embeddings, all_methods
from ray_backfill.learn.models.apply import load_network
from ray_backfill.learn.sides import Sides
from ray_backfill.learn.training.fit import TrainSet, fit_into, one_thread
from ray_backfill.learn.training.settings import FitSettings

def draw(method, n):
    rng = np.random.default_rng(n)
    return {m: rng.normal(size=(n, 4 if m == "old" else 6)).astype(np.float32) for m in method.models}

refused, served = [], []
for method in all_methods().values():
    network, folder = None, Path(sys.argv[1]) / method.name
    if method.fit is not None:
        data = TrainSet(draw(method, 40), np.arange(40) % 5)
        try:
            with one_thread(method.is_trained):
                folder.mkdir()
                (folder / "manifest.json").write_text("{}")
                fit_into(folder, method.title, method.fit, data, FitSettings(), "cosine")
        except InputError as error:
            assert "python -m pip install 'ray[data,default,train]" in str(error), error
            refused.append(method.name)
            continue
        network = load_network(folder)
    queries, gallery = draw(method, 3), draw(method, 7)
    pair = method.pair(Embeddings(queries, gallery), network)
    assert np.isfinite(pair.backward.gallery).all() and np.isfinite(pair.backward.query).all()
    dims = {model: vectors.shape[1] for model, vectors in gallery.items()}
    Sides(method, network, RAW, "cosine", dims).gallery("backward", gallery)
    served.append(method.name)
table = rb.methods()
assert refused == list(table.index[table.is_trained]), refused
assert served == list(table.index[~table.is_trained]), served
print(len(served))
"""


def test_formulas_need_neither_torch_nor_ray(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 25


@pytest.mark.parametrize("unit", [True, False])
def test_formula_maps_of_earlier_versions_are_read(unit: bool, tmp_path: Path) -> None:
    """They were written by torch, and applied as a linear layer in float64."""
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(5, 7), torch.randn(100, 5)
    weights = {f"linear.{name}": value.contiguous() for name, value in linear.state_dict().items()}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    write_json(tmp_path / "network.json", {"kind": "affine", "shape": {"input_dim": 5, "output_dim": 7, "unit": unit}})
    wide = x.double()
    with torch.no_grad():
        expected = linear.double()(torch.nn.functional.normalize(wide, dim=1) if unit else wide).float().numpy()
    np.testing.assert_array_max_ulp(transform(load_network(tmp_path), x.numpy()), expected, maxulp=1)


def test_slerp_maps_of_earlier_versions_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rotation = torch.from_numpy(np.linalg.qr(rng.normal(size=(6, 6)))[0][:4].astype(np.float32))
    safetensors.torch.save_file({"rotation.weight": rotation}, tmp_path / "model.safetensors")
    write_json(tmp_path / "network.json", {"kind": "slerp", "shape": {"old_dim": 4, "new_dim": 6, "alpha": 0.3}})
    old, new = torch.from_numpy(rng.normal(size=(50, 4))), torch.from_numpy(rng.normal(size=(50, 6)))
    u = torch.nn.functional.normalize(old, dim=1)
    v = torch.nn.functional.normalize(new, dim=1) @ rotation.double().T
    theta = (u * v).sum(1, keepdim=True).clamp(-1 + 1e-7, 1 - 1e-7).acos()
    expected = (((0.7 * theta).sin() * u + (0.3 * theta).sin() * v) / theta.sin()).float().numpy()
    found = transform(load_network(tmp_path), old.numpy(), new.numpy())
    np.testing.assert_array_max_ulp(found, expected, maxulp=1)
