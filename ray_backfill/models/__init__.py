"""Networks and their files. No losses, no training."""
