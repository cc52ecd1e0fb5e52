"""Settings -> weights: the training step, the loop, checkpoints, and the commands that run models over a split."""
