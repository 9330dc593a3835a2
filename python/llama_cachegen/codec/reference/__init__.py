"""Slow and plain second implementations: what the native codec is compared with."""
