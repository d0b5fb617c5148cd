"""Fast operations, one folder each: ``reference.py`` is the eager definition and the CPU path."""
