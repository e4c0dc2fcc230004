"""Jobs on a Ray cluster: this checkout as a wheel, submitted by name."""
