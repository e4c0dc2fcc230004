"""DAS on the platform."""
