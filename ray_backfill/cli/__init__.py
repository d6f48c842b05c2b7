"""Command lines: options, what they start, and how errors are told."""
