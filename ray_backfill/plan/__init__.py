"""The plan of an upgrade: hours, dollars and quality over time, each number with where it comes from."""
