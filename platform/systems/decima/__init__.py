"""Decima on the platform."""
