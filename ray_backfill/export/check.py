"""Compares your service's answers with those of the replay, at a share of the backfill. Needs Python alone.

    python check.py ANSWERS.jsonl --backfilled 30%

ANSWERS.jsonl: one line for each query of check.json, {"query": ID, "items": [ID, ...]}, best first: ten items, and as
many more as the query ignores. Exit code 0: the service is within the band of the replay. 11: it is worse. 2: the
answers cannot be compared.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any


def ndcg(items: list[str], right: dict[str, float]) -> float:
    """Normalised discounted cumulative gain of these items, with linear gains."""
    gain = sum(right.get(item, 0.0) / math.log2(2 + place) for place, item in enumerate(items))
    best = sorted(right.values(), reverse=True)[: len(items)]
    return gain / sum(grade / math.log2(2 + place) for place, grade in enumerate(best))


def compare(check: dict[str, Any], answers: dict[str, list[str]], moment: int, band: float, least: float) -> int:
    """Print what was found; returns the exit code. moment: number of the share in check.json."""
    k, n = check["k"], len(check["queries"])
    ours, replayed, same, listed = 0.0, 0.0, 0, 0
    for query in check["queries"]:
        expected, ignored = query["items"][moment], set(query["ignored"])
        items = [item for item in dict.fromkeys(answers[query["id"]]) if item not in ignored][:k]
        if len(items) < len(expected):
            raise ValueError(
                f"query {query['id']} has {len(items)} items that count; give {k + len(ignored)} different ones"
            )
        ours += 100 * ndcg(items, query["right"]) / n
        replayed += 100 * query["ndcg"][moment] / n
        same += len(set(items) & set(expected))
        listed += len(expected)
    print(f"nDCG@{k} of {n} queries at {check['shares'][moment]} %: {ours:.2f} %, in the replay {replayed:.2f} %")
    print(f"items of the replay that are among the first {k}: {same / listed:.1%}")
    if replayed - ours > band:
        print(f"nDCG@{k} is {replayed - ours:.2f} points lower, more than {band:g}: stop, and look for the reason")
        return 11
    if same / listed < least:
        print(f"fewer than {least:.0%} of the items are the same: stop; is this the share that is backfilled?")
        return 11
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--backfilled", required=True, help="share of the gallery that is backfilled, such as 30%%")
    parser.add_argument("--band", type=float, default=1.0, help="points that an approximate index may cost (1)")
    parser.add_argument("--same", type=float, default=0.8, help="least share of the replay's items (0.8)")
    given, here = parser.parse_args(), Path(__file__).parent
    try:
        check, service = (
            json.loads((here / name).read_text(encoding="utf-8")) for name in ("check.json", "service.json")
        )
        if check["export"] != service["export"]:
            raise ValueError("check.json and service.json are of two exports")
        share = round(float(given.backfilled.rstrip("%")) * (1 if "%" in given.backfilled else 100), 6)
        if share not in check["shares"]:
            raise ValueError(
                f"the replay was kept at {', '.join(map(str, check['shares']))} %; compare at one of these"
            )
        if not 0 <= given.band <= 100 or not 0 <= given.same <= 1:
            raise ValueError("--band is a number of points, and --same a share between 0 and 1")
        lines = [json.loads(line) for line in given.answers.read_text(encoding="utf-8").splitlines() if line.strip()]
        answers = {str(line["query"]): [str(item) for item in line["items"]] for line in lines}
        missing = [query["id"] for query in check["queries"] if query["id"] not in answers]
        if missing:
            raise ValueError(f"{given.answers} has no answer to query {missing[0]} and {len(missing) - 1} others")
        return compare(check, answers, check["shares"].index(share), given.band, given.same)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
