"""Kinds of models, one file each: rows of ``MODELS`` and ``RERANKERS``, as other distributions can register them."""
