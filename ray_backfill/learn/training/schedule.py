"""Learning-rate schedules."""

import math


def warmup_cosine(step: int, steps: int, warmup_steps: int) -> float:
    """Factor of the peak learning rate: a linear rise over warmup_steps, then a cosine to 0 at ``steps``."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))
