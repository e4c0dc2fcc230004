"""The engine Ray Serve: replicas of deployments, by a policy class in Serve or by its REST API.

`policy.py` runs inside of Serve; `engine.py` is for `loadmaster steer ray-serve`. Both form the
state of AWARE's endpoint in `history.py`.
"""
