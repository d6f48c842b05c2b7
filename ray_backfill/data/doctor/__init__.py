"""Examines the files of a folder of embeddings."""
