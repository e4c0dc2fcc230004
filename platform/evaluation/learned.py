"""Import path of `Learned` that explanations.py still uses."""

from loadmaster.platform.evaluation.adapters import Learned as Learned
