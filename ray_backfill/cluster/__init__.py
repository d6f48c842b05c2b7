"""All code that imports ray: runs the loops of training/ and the readers of datasets/ on workers."""
