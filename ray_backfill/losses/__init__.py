"""The losses of the methods, one paper a file. They load torch, so tables of methods name them by ``deferred``."""
