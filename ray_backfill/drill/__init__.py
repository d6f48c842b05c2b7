"""The logic of a live drill without Ray: operations, shards, traffic schedules, throttling and quality."""
