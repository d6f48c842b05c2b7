"""What a comparison runs on Ray: the replay over gallery shards, and fits and trials side by side or under DDP."""
