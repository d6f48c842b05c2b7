"""What a run will need before it runs: images, steps, GPU hours, storage. Nothing here computes, trains or decodes."""
