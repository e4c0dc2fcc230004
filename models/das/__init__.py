"""DAS: two agents that order GPU jobs and place them on machines (KDD 2023)."""
