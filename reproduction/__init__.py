"""Comparison with the published papers: experiments with several seeds, their tables, and every claim."""
