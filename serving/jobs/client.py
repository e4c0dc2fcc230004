"""Jobs on a Ray cluster: `loadmaster` commands, submitted by name with this installation's code."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.serving.jobs.access import (
    ANSWER_S,
    API_SERVER,
    AUTH_TOKEN,
    cluster_token,
    dashboard_address,
)
from loadmaster.serving.jobs.job import (
    COMMAND,
    FOLDER,
    Job,
    entrypoint,
    environment,
    job_folder,
    job_from,
    job_id,
    usual_name,
)
from loadmaster.serving.jobs.wheel import wheel

TRANSFER_S = 120.0  # how long one request may take: the wheel is uploaded in one
PAUSE_S = 0.5
LISTED = 5  # of the latest jobs, where one is named that is not there


class UnreachableError(InputError):
    """The cluster does not answer now; the job may be doing well."""


class UnknownJobError(InputError):
    """The cluster has no such job: it never had, or it was started anew."""


class Jobs:
    """A cluster's jobs. Every failure is an InputError of one line. Calls block; it is cheap to
    make one, and nothing is asked before the first call."""

    def __init__(self, address: str | None = None, token: str | None = None) -> None:
        self._given, self._token = address, token

    @cached_property
    def address(self) -> str:
        """Of the dashboard: http://host:port."""
        return dashboard_address(self._given)

    def submit(
        self,
        arguments: Sequence[str],
        *,
        name: str | None = None,
        storage: str | None = None,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cpus: float = 0,
        gpus: float = 0,
        code: Path | None = None,
    ) -> str:
        """Run `loadmaster ARGUMENTS` on the cluster; the job's id.

        It runs in a folder of its own under `storage`, an absolute path on the cluster (its
        user's home unless told): there the command's relative paths are. `cpus` and `gpus` are
        for the command itself; its workers ask for their own. `code` is a wheel to run instead of
        this installation's.
        """
        now = datetime.datetime.now()
        job = job_id(name or usual_name(arguments), now, secrets.token_hex(2))
        folder = job_folder(storage, job)
        noted = {**(metadata or {}), COMMAND: shlex.join(arguments), FOLDER: folder}
        variables = environment(env or {})
        shipped = str(code or wheel())
        with self._told():
            return str(
                self._ray.submit_job(
                    entrypoint=entrypoint(arguments, folder),
                    submission_id=job,
                    runtime_env={"py_modules": [shipped], "env_vars": variables},
                    metadata=noted,
                    entrypoint_num_cpus=cpus or None,
                    entrypoint_num_gpus=gpus or None,
                )
            )

    def list(self) -> list[Job]:
        """Ours, the latest first; other people's are none of our business."""
        with self._told():
            found = [details.model_dump() for details in self._ray.list_jobs()]
        ours = [job_from(each) for each in found if COMMAND in (each.get("metadata") or {})]
        return sorted(ours, key=lambda job: job.submitted_at or 0, reverse=True)

    def get(self, job: str) -> Job:
        with self._told(job):
            return job_from(self._ray.get_job_info(job).model_dump())

    def find(self, name: str) -> Job:
        """The job of that id, or the only one whose id has `name` in it."""
        known = {job.id: job for job in self.list()}
        fitting = [each for each in known if name in each]
        if name in known:
            return known[name]
        if len(fitting) == 1:
            return known[fitting[0]]
        if fitting:
            some = ", ".join(fitting[:3])
            raise UnknownJobError(f"{name!r} is in {len(fitting)} jobs' ids: {some}; expected one")
        if not known:
            raise UnknownJobError(f"no job {name!r}: {self.address} has none of loadmaster's")
        raise UnknownJobError(str(unknown_name("job", name, [*known][:LISTED])))

    def logs(self, job: str) -> str:
        """All that it has written so far."""
        with self._told(job):
            return str(self._ray.get_job_logs(job))

    def follow(self, job: str) -> Iterator[str]:
        """What it writes, as it comes, until it ends; a connection that breaks is made anew."""
        seen = 0  # characters given out
        while True:
            passed = 0
            for text in self._tail(job):
                if passed + len(text) > seen:
                    yield text[max(0, seen - passed) :]
                passed += len(text)
                seen = max(seen, passed)
            if self.get(job).ended:
                return
            time.sleep(PAUSE_S)

    def wait(self, job: str, patience_s: float) -> Job:
        """Until it has ended, or patience has."""
        end = time.monotonic() + patience_s
        while not (found := self.get(job)).ended and time.monotonic() < end:
            time.sleep(PAUSE_S)
        return found

    def stop(self, job: str) -> bool:
        """Ask it to end, which takes it some seconds; False where it had ended already."""
        with self._told(job):
            return bool(self._ray.stop_job(job))

    def _tail(self, job: str) -> Iterator[str]:
        import aiohttp

        lines = self._ray.tail_job_logs(job)

        async def following() -> str | None:
            return await anext(lines, None)

        # One Runner for all: on Ctrl-C it cancels what is under way before it raises.
        with asyncio.Runner() as runner:
            while True:
                try:
                    text = runner.run(following())
                except (aiohttp.ClientError, RuntimeError, OSError):
                    return  # the next question says what is wrong
                if text is None:
                    return
                yield text

    @cached_property
    def _ray(self) -> Any:
        """Ray's own client, once the cluster has been seen to answer."""
        token = self._token or cluster_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._greet(headers)
        from ray.job_submission import JobSubmissionClient

        for module in ("dashboard_sdk", "job.sdk"):  # they tell every upload
            logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.WARNING)
        with _only_address(self.address):
            client = JobSubmissionClient(self.address, headers=headers)
        client._do_request = partial(client._do_request, timeout=TRANSFER_S)  # it has none
        return client

    def _greet(self, headers: Mapping[str, str]) -> None:
        """Ray's client would wait for a silent address without end."""
        import requests

        url = f"{self.address}/api/version"
        try:
            answer = requests.get(url, headers=dict(headers), timeout=ANSWER_S)
        except OSError as fault:  # those of requests are
            raise self._silent(fault) from None
        if answer.status_code in (401, 403):
            raise self._refused(bool(headers))
        if answer.status_code != 200 or "ray_version" not in answer.text:
            raise InputError(
                f"what answers at {self.address} is no Ray dashboard; expected the address that "
                "`ray start --head` printed"
            )

    @contextmanager
    def _told(self, job: str | None = None) -> Iterator[None]:
        """Whatever goes wrong inside, in one line."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except InputError:
            raise
        except AuthenticationError as fault:
            raise self._refused("required" not in str(fault)) from None
        except OSError as fault:
            raise self._silent(fault) from None
        except (RuntimeError, ValueError) as fault:
            said = " ".join(str(fault).split())
            if job is not None and ("status code 404" in said or "does not exist" in said):
                raise UnknownJobError(f"the cluster at {self.address} has no job {job!r}") from None
            raise InputError(f"the cluster at {self.address} refused: {said[:300]}") from None

    def _silent(self, fault: OSError) -> UnreachableError:
        reason = _reason(fault)
        return UnreachableError(
            f"no Ray cluster answers at {self.address} ({reason}); expected the dashboard of a "
            f"running one: --address URL or {API_SERVER}"
        )

    def _refused(self, had_token: bool) -> InputError:
        what = "refuses the token" if had_token else "asks for a token, and none is set"
        return InputError(
            f"the cluster at {self.address} {what}; expected its own in {AUTH_TOKEN} or in "
            "~/.ray/auth_token"
        )


def _reason(fault: BaseException) -> str:
    """The words of the system's own error, which libraries wrap several times."""
    import requests

    if isinstance(fault, requests.exceptions.Timeout):
        return "no answer in time"
    inner: BaseException | None = fault
    while inner is not None:
        for part in (inner, *inner.args):
            if isinstance(part, OSError) and part.strerror:
                return part.strerror
        inner = inner.__cause__ or inner.__context__
    return "the connection broke"


@contextmanager
def _only_address(address: str) -> Iterator[None]:
    """Ray lets two variables override any address it is given; an address we chose stands."""
    before = os.environ.get(API_SERVER)
    os.environ[API_SERVER] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[API_SERVER]
        else:
            os.environ[API_SERVER] = before
