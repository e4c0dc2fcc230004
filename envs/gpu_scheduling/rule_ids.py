"""Former place of the rule ids, which are in `baselines`."""

from loadmaster.envs.gpu_scheduling.baselines import DRF as DRF
from loadmaster.envs.gpu_scheduling.baselines import FIFO as FIFO
from loadmaster.envs.gpu_scheduling.baselines import GIVEN as GIVEN
from loadmaster.envs.gpu_scheduling.baselines import LAS as LAS
