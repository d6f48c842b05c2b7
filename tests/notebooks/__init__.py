"""Tests of the notebooks: each runs from start to end."""
