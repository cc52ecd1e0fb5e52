"""Faster CPU implementations with hand-written backward passes; see benchmarks/ for the speedups."""
