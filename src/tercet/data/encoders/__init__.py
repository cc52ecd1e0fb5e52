"""Feature extraction with frozen encoders."""
