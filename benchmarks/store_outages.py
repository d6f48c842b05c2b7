"""How long a command takes to end when object storage is wrong, with the timeouts and retries that users have.

    python -m benchmarks.store_outages

The tests (tests/test_bad_store.py) shorten both; this does not. `ray-backfill simulate` runs once for each fault of
`tests/faulty_store.py`, two at a time, and its exit code, seconds and line are printed. Five minutes.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bad_folder import SPLITS, write_split
from tests.faulty_store import faulty
from tests.object_store import client_variables, free_port, new_bucket, served

# Fault of the requests ("" for none), the method that has it ("" for all), and variables. {port}: one that nobody
# listens to; {here}: the proxy by https.
_OUTAGES: dict[str, tuple[str, str, dict[str, str]]] = {
    "never answers": ("hang", "", {}),
    "never answers a PUT": ("hang", "PUT", {}),
    "connection ends": ("reset", "", {}),
    "connection refused": ("", "", {"AWS_ENDPOINT_URL": "http://127.0.0.1:{port}"}),
    "no such host": ("", "", {"AWS_ENDPOINT_URL": "http://nobody.invalid"}),
    "https asked of http": ("", "", {"AWS_ENDPOINT_URL": "{here}"}),
    "internal error": ("internal", "", {}),
    "asks to slow down": ("slow down", "", {}),
    "full": ("full", "PUT", {}),
    "denied": ("denied", "", {}),
    "another server's page": ("page", "", {}),
    "no credentials": ("", "", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}),
}


def main() -> None:
    with TemporaryDirectory() as scratch, served("moto", Path(scratch)) as endpoint:
        folder = Path(scratch)
        (folder / "data").mkdir()
        for split, columns in SPLITS.items():
            write_split(folder / "data", split, columns)
        without_files = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
        environment = {**os.environ, **client_variables(endpoint, folder / "copies"), **without_files}
        environment["AWS_EC2_METADATA_DISABLED"] = "true"
        bucket = new_bucket(endpoint)

        def seconds(outage: str) -> float:
            fault, method, variables = _OUTAGES[outage]
            with faulty(endpoint) as (address, faults):
                if fault:
                    faults.always(fault, *filter(None, [method]))
                fill = {"port": free_port(), "here": address.replace("http:", "https:")}
                own = {name: value.format(**fill) for name, value in variables.items()}
                out = f"s3://{bucket}/{outage.replace(' ', '-')}"
                words = [sys.executable, "-m", "ray_backfill", "simulate", "--data", str(folder / "data"), "--out", out]
                began = time.perf_counter()
                ended = subprocess.run(
                    words, env={**environment, "AWS_ENDPOINT_URL": address, **own}, capture_output=True, text=True
                )
                taken = time.perf_counter() - began
            print(f"{outage}: {taken:.0f} s, exit code {ended.returncode}, {ended.stderr.strip()}", flush=True)
            return taken

        with ThreadPoolExecutor(2) as pool:
            print(f"the longest: {max(pool.map(seconds, _OUTAGES)):.0f} s")


if __name__ == "__main__":
    main()
