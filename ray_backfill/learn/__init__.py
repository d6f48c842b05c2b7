"""Methods, and how they are fitted: one file per paper."""
