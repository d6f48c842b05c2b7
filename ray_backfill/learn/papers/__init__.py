"""Networks, losses and training loops, one file per paper. They need torch: the tables of methods and fits name them by
``Deferred``.
"""
