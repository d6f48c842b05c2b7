"""Tests of the page writer."""
