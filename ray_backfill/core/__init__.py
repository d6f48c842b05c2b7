"""What every room stands on: errors, files and stages, locks, keys, tables, kernels, plugins, progress."""
