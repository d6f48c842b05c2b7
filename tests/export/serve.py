"""Serves exports with the lines of their README.md and nothing of ours; run by ``test_served`` in a Python without it.

    python -I -S serve.py SITE EMBEDDINGS.npz ANSWERS.json FOLDER...

SITE: where numpy and onnxruntime are. Writes, for each folder and share of the backfill, the first items of each query.
"""

import csv
import json
import os
import sys

sys.path[:0] = [sys.argv[1]]
for absent in ("torch", "ray", "ray_backfill", "pyarrow", "pandas"):
    try:
        __import__(absent)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{absent} is here")

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402


def served(folder: str, data: dict[str, np.ndarray], shares: list[float], k: int) -> list[list[list[str]]]:
    """One list for each share and query: the ids of its first k items."""
    os.chdir(folder)
    with open("README.md", encoding="utf-8") as file:  # noqa: PTH123
        code = file.read().split("```python\n")[1].split("```")[0]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 30, len(lines)
    names: dict[str, object] = {}
    exec(code, names)
    answer: object = names["answer"]
    assert callable(answer)
    service = json.loads(open("service.json").read())  # noqa: PTH123, SIM115
    distance = service["distance"]
    with open("order.csv", encoding="utf-8") as file:  # noqa: PTH123
        ranks = {row["id"]: int(row["rank"]) for row in csv.DictReader(file)}
    rank = np.array([ranks[item] for item in data["id"].tolist()])
    items = {}
    for partition, side in (("old", "backward"), ("new", "forward")):
        session = onnxruntime.InferenceSession(f"items_{side}.onnx")
        given = {model.name: data[f"gallery/{model.name}"] for model in session.get_inputs()}
        (items[partition],) = session.run(["vector"], given)
    answers = []
    for share in shares:
        is_new = rank < int(share * len(rank))

        def search(partition: str, vector: np.ndarray, k: int) -> tuple[list[str], np.ndarray]:
            rows = np.flatnonzero(is_new == (partition == "new"))  # noqa: B023
            near, query = items[partition][rows].astype(float), vector.astype(float)
            if distance == "l2":
                distances = np.sqrt(((near - query) ** 2).sum(1))
            elif distance == "cosine":
                distances = 1 - near @ query / np.linalg.norm(near, axis=1) / np.linalg.norm(query)
            else:
                distances = -(near @ query)
            first = np.argsort(distances, kind="stable")[:k]
            return data["id"][rows[first]].tolist(), distances[first]

        phase = "after" if share == 1 else "during"
        models = service[phase]["query"]["embed"]
        graphs: object = names["graphs"]
        assert isinstance(graphs, dict)
        searched = service[phase]["query"]["search"].values()
        assert {of.name for side in searched for of in graphs[side].get_inputs()} == set(models), "all, and no more"
        queries = range(len(data[f"query/{models[0]}"]))
        of_query = ({model: data[f"query/{model}"][[row]] for model in models} for row in queries)
        answers.append([answer(embeddings, search, k, phase) for embeddings in of_query])
    return answers


def main() -> None:
    with np.load(sys.argv[2], allow_pickle=False) as arrays:
        data = dict(arrays)
    shares, k = data.pop("shares").tolist(), int(data.pop("k"))
    answers = {folder: served(folder, data, shares, k) for folder in sys.argv[4:]}
    with open(sys.argv[3], "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(answers, file)


if __name__ == "__main__":
    main()
