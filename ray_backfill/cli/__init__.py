"""Command lines: options, commands, and error messages."""
