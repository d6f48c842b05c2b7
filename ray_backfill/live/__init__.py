"""A half-done gallery as it serves: what its shards, its log, its traffic and its throttle do; no Ray."""
