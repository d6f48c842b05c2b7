"""Compiled loops on a machine without a writable cache folder."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_machine_without_a_writable_folder_compiles_in_every_process() -> None:
    code = (
        "import numba.core.caching as c\n"
        "c.CacheImpl._locator_classes = []\n"  # as if no folder could be written
        "import numpy as np, ray_backfill as rb\n"
        "s = rb.RetrievalSystem(np.ones((1, 2), np.float32), np.ones((3, 2), np.float32))\n"
        "t = rb.GroundTruth.from_positives([[1]], n_gallery=3)\n"
        "print(rb.replay(rb.UpgradePair(s, s), t, np.arange(3), 2).values('mAP'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0.5 0.5]"
