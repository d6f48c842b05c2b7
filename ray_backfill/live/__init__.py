"""A half-done gallery as it serves: what its operations, its shards, its traffic and its throttle do; no Ray."""
