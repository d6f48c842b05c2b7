"""A live drill on Ray: its shards, its traffic, its embedding actors, and the driver that has them."""
