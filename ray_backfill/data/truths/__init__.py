"""Ways to know right answers, one module for each kind; ``TRUTHS`` of a module are its ways. See ``data.truth``."""
