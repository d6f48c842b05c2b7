"""The losses of the methods, one file per paper. They import torch, so methods refer to them by ``Deferred``."""
