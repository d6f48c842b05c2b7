"""Training loops in plain torch, alone or under DDP. They know nothing of Ray: cluster/ starts them on workers."""
