"""Training: objective, steps, loop, and what is kept on disk."""
