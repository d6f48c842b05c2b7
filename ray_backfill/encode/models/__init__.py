"""Kinds of models, one file each: rows of ``MODELS``, as other distributions can register them."""
