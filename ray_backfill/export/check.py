"""Compares your service's answers with those of the replay, at a share of the backfill. Needs Python alone.

    python check.py ANSWERS.jsonl --backfilled 30%

ANSWERS.jsonl: one line for each query of check.json, {"query": ID, "items": [ID, ...]}, best first, ten items or more.
Exit code 0: nDCG@10 is within the band of the replay. 11: it is lower. 2: the file cannot be compared.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any


def ndcg(items: list[str], right: dict[str, float], ignored: set[str], k: int) -> float:
    """Normalised discounted cumulative gain of the first k items that are not ignored, with linear gains."""
    counted = [item for item in items if item not in ignored][:k]
    gain = sum(right.get(item, 0.0) / math.log2(2 + place) for place, item in enumerate(counted))
    best = sorted(right.values(), reverse=True)[:k]
    return gain / sum(grade / math.log2(2 + place) for place, grade in enumerate(best))


def compare(check: dict[str, Any], answers: dict[str, list[str]], share: float, band: float) -> int:
    """Print what was found; returns the exit code. share: of the gallery that is backfilled, 0 to 1."""
    k, moments = check["k"], check["moments"]
    after = next(place for place, moment in enumerate(moments) if moment >= share - 1e-9)
    before = after if abs(moments[after] - share) < 1e-9 else after - 1
    weight = 0.0 if after == before else (share - moments[before]) / (moments[after] - moments[before])
    lower, equal, values = 0.0, 0, []
    for query in check["queries"]:
        items, ignored = answers[query["id"]], set(query["ignored"])
        values.append(ndcg(items, query["right"], ignored, k))
        replayed = (1 - weight) * query["ndcg"][before] + weight * query["ndcg"][after]
        lower += replayed - values[-1]
        shown = {item for item in items if item not in ignored}
        equal += len(shown & set(query["items"][before])) if after == before else 0
    n = len(values)
    ours, replayed = 100 * sum(values) / n, 100 * (sum(values) + lower) / n
    print(f"nDCG@{k} of {n} queries at {share:.1%}: {ours:.2f} %, in the replay {replayed:.2f} %")
    if after == before:
        listed = sum(len(query["items"][before]) for query in check["queries"])
        print(f"items that both find among the first {k}: {equal / listed:.1%}")
    if replayed - ours > band:
        print(
            f"lower than the replay by {replayed - ours:.2f} points, more than {band:g}: stop, and look for the reason"
        )
        return 11
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--backfilled", required=True, help="share of the gallery that is backfilled, such as 30%%")
    parser.add_argument("--band", type=float, default=1.0, help="points that an approximate index may cost (1)")
    given = parser.parse_args()
    try:
        share = float(given.backfilled.rstrip("%")) / (100 if "%" in given.backfilled else 1)
        check = json.loads(Path(__file__).with_name("check.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in given.answers.read_text(encoding="utf-8").splitlines() if line.strip()]
        answers = {str(line["query"]): [str(item) for item in line["items"]] for line in lines}
        if not 0 <= share <= 1:
            raise ValueError(f"--backfilled is a share between 0 and 100%, not {given.backfilled}")
        missing = [query["id"] for query in check["queries"] if query["id"] not in answers]
        if missing:
            raise ValueError(f"{given.answers} has no answer to query {missing[0]} and {len(missing) - 1} others")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return compare(check, answers, share, given.band)


if __name__ == "__main__":
    sys.exit(main())
