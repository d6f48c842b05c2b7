"""The runs of recipes: checks, training, embedding, plans, and the whole chain to a report or a drill."""
