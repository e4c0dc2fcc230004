"""Learning from complete episodes in the background: a call of a worker for each.

Decisions do not wait for it: a worker learns where it decides in the shadow. What is learned and
the next episode are written in one transaction. An episode stays complete until a worker has
learned from it, so if none is up, or the gateway is killed, the next feedback tries again.
"""

import asyncio
import logging

from loadmaster.serving.decisions.episodes import LearnReply
from loadmaster.serving.decisions.request import line_of
from loadmaster.serving.decisions.tenant import Tenant
from loadmaster.serving.decisions.tenant_registry import TenantRegistry
from loadmaster.serving.policies.control_view import ControlView
from loadmaster.serving.worker.pool import Worker

log = logging.getLogger(__name__)

LEARN_S = 10.0  # how long a worker may take; a tenant stays in memory meanwhile


class EpisodeLearner:
    """Background calls for the tenants of one system. Called by the event loop only."""

    def __init__(self, worker: Worker, tenants: TenantRegistry, control: ControlView) -> None:
        self._worker, self._tenants, self._control = worker, tenants, control
        self._running: dict[str, asyncio.Task[None]] = {}  # by tenant

    def add_reward(self, tenant: Tenant, decision_id: str | None, reward: float) -> None:
        """Complete a step of the tenant's episode, and learn from that if it is complete."""
        if tenant.episode is None or not tenant.episode.add_reward(decision_id, reward):
            return
        if tenant.name not in self._running:
            tenant.pins += 1
            task = asyncio.get_running_loop().create_task(self._learn(tenant))
            self._running[tenant.name] = task

    async def _learn(self, tenant: Tenant) -> None:
        episode = tenant.episode
        assert episode is not None
        last, roles = episode.last, self._control.roles
        slots = roles.serving, roles.shadow, roles.previous
        try:
            bundle = next((one for one in slots if one and one.version == episode.version), None)
            if bundle is None:
                raise LookupError(f"its bundle {episode.version} neither serves nor did before")
            async with asyncio.timeout(LEARN_S):
                reply = await self._worker.learn(bundle.version, bundle.folder, episode.request())
            learned = LearnReply.model_validate_json(reply)
        except (OSError, TimeoutError) as fault:  # no worker: the next feedback tries again
            log.info("%s: an episode waits: %s", tenant.name, line_of(fault))
        except Exception as fault:  # it would fail again
            log.warning("%s: an episode is dropped: %s", tenant.name, line_of(fault))
            episode.drop(last)
        else:
            tenant.remember(learned.line)
            episode.learned = learned.episodes
            episode.drop(last)
            self._tenants.save(tenant)
        finally:
            tenant.pins -= 1
            del self._running[tenant.name]

    async def close(self) -> None:
        """Stop; episodes that were not learned from stay complete."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
