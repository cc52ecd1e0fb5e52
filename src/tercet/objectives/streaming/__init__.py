"""Streaming: an objective and its exact gradient from tiles of S, without holding S in memory."""
