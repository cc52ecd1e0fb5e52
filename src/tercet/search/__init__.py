"""Image search: embed images into an index, query it by text or by image."""
