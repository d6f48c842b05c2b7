"""All that imports ray: starts the loops of training/ and the readers of datasets/ on workers. No mathematics."""
