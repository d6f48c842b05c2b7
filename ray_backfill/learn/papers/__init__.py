"""What needs torch: the networks, losses and trainings of the methods, one file per paper. Tables name them."""
