"""Decision service: trained policies behind HTTP."""
