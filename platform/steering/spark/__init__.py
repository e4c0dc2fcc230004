"""The engine Spark: the order of stages and the limits of jobs inside applications."""
