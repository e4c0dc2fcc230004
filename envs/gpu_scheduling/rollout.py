"""Former place of names that are in `episode` and `placement`."""

from loadmaster.envs.gpu_scheduling.episode import EpisodeResult as EpisodeResult
from loadmaster.envs.gpu_scheduling.episode import PlacementTrace as PlacementTrace
from loadmaster.envs.gpu_scheduling.episode import run_baseline as run_baseline
from loadmaster.envs.gpu_scheduling.placement import no_preferences as no_preferences
