"""Whole runs: the chain of stages from images or embeddings to a report or a drill, and its plan."""
