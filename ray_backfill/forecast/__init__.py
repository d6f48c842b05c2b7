"""Forecasts of a backfill from the new embeddings of a few items.

A sample of the gallery is embedded by the new model. The curve of a method is then estimated with an interval:

- ``sample`` draws the items: some at random (the pilot), some right answers of randomly chosen queries, and items that
  are probably close to these queries. It keeps them in a file.
- ``known_items`` reads their new embeddings, and fits the map that predicts those of the others (stand-ins).
- ``models`` are fitted to the distances of items that are not sampled, given those of their stand-ins: of items that
  are no right answers, and of right answers.
- ``counts`` counts, for each chosen query, the items that are closer than its right answers: exactly where distances
  are known, otherwise their expected number. ``expected`` turns counts into the expected value of a metric.
- ``engine`` does that for all chosen queries of a method; ``estimate`` goes from them to all queries, with an interval.
- ``methods`` and ``run`` forecast every method of a comparison and write ``tables``; ``report`` shows them.

Shapes: Q queries, m chosen queries, N gallery items, n sampled items, T moments, O orders, R metrics, K entries of a
query (its right answers or draws for them), C cells of predicted distance.
"""
