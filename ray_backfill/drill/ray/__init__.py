"""A live drill on Ray: shards, traffic, embedding actors, and the driver that runs them."""
