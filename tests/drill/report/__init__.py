"""Tests of the report of a live drill."""
