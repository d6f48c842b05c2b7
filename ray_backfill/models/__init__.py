"""FittedMaps and their files. No losses, no training."""
