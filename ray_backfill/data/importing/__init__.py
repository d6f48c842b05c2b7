"""Vectors from other stores into a folder of embeddings."""
