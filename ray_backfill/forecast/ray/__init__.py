"""The forecast over gallery shards in Ray actors."""
