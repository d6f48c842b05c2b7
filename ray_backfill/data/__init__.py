"""The folder of embeddings: reading, writing, right answers, groups of queries, checks, and other stores."""
