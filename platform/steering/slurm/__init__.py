"""The engine Slurm: GPU jobs ordered, placed, stopped and moved by DAS's endpoint.

A job waits by its begin time, which `job_submit.lua` sets and the steerer puts off. Where the
steerer or the service ends, begin times pass, and Slurm starts the jobs by its own rules.
"""
