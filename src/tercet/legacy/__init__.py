"""What the papers' released code computes and prints, errors included, to compare with published numbers."""
