"""Tests of the look of figures."""
