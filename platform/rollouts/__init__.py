"""Where policies meet simulators: the loops that run one inside the other."""
