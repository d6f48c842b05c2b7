"""What every package uses: errors, files and stages, locks, keys, tables, kernels, plugins, progress."""

__version__ = "0.2.0"
