"""GPU scheduling: which pending job goes next, and on which machines its instances run."""
