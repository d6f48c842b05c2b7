"""Networks and their files, without losses and training."""
