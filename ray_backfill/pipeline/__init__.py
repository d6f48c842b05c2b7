"""The stages of a service around its partitions: cuts, fusion with a text list, a re-ranker; and what each changes."""
