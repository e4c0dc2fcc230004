"""The engine Flink: parallelism of streaming jobs by its REST interface."""
