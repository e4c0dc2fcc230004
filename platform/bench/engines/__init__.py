"""Real engines: starters of them, and measurements of what steering them gains."""
