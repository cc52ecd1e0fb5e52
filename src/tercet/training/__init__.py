"""Settings -> weights: the step, the loop around it, checkpoints, run folders."""
