"""Replay of episodes as a web page, and of decision logs."""
