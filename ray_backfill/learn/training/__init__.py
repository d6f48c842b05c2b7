"""Training loops and fits in plain torch, alone or under DDP. They know neither Ray nor any method by name."""
