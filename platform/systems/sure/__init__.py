"""SURE in the platform."""
