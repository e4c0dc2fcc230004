"""Networks of DDPG and TD3: a deterministic actor and one or two Q critics."""
