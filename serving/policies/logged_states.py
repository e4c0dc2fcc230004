"""States in the decision log as input of a retraining.

The log has more of the past than one state: weeks of a load instead of its last hour.
"""

import logging
import warnings
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.models.storage import Place
from loadmaster.serving.decisions.request import line_of
from loadmaster.serving.monitoring.log_files import read_log
from loadmaster.serving.system import Endpoint, RecordedInput

log = logging.getLogger(__name__)

DAYS = 14  # that are read
SPACING_S = 600.0  # states that are nearer to the one before are left out


class LoggedStates:
    """The log of one system. Calls block."""

    def __init__(self, endpoint: Endpoint[Any, Any, Any], folder: Place) -> None:
        self._endpoint, self._folder = endpoint, folder

    def recorded(self, tenant: str, now: float) -> RecordedInput | None:
        """Input of a retraining for a tenant; None if there is none or the log cannot be read."""
        try:
            return self._endpoint.recorded(self._states(tenant, now - DAYS * 86_400))
        except Exception as fault:  # the retraining then goes without
            log.warning("%s: the log is not used, %s", self._endpoint.system, line_of(fault))
            return None

    def _states(self, tenant: str, since: float) -> Iterator[tuple[float, Any]]:
        """Valid states with their times, the oldest first."""
        latest = -SPACING_S
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged files
            for row in read_log(self._folder, since):
                if row.tenant != tenant or row.time - latest < SPACING_S:
                    continue
                try:
                    state = self._endpoint.state.model_validate_json(row.state)
                except (ValidationError, InputError):
                    continue  # of another version
                latest = row.time
                yield row.time, state
