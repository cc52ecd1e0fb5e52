"""What a gradient does: counts of the samples behind it, and whether it is what it claims to be."""
