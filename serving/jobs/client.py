"""Client of a Ray cluster's jobs: runs `loadmaster` commands with this installation's code."""

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
from loadmaster.serving.jobs import access
from loadmaster.serving.jobs import job as submission
from loadmaster.serving.jobs.access import ANSWER_S, API_SERVER
from loadmaster.serving.jobs.job import COMMAND, Job, job_from
from loadmaster.serving.jobs.wheel import wheel

TRANSFER_S = 120.0  # timeout of a request; the wheel is uploaded in one
PAUSE_S = 0.5
SUGGESTED = 5  # latest jobs in the error for an unknown one


class UnreachableError(InputError):
    """The cluster does not respond; the job may still be running."""


class UnknownJobError(InputError):
    """The cluster has no such job; perhaps it was restarted."""


class Jobs:
    """Jobs of a cluster. Calls block and raise InputError. The first call connects."""

    def __init__(self, address: str | None = None, token: str | None = None) -> None:
        self._given, self._token = address, token

    @cached_property
    def address(self) -> str:
        """Address of the dashboard: http://host:port."""
        return access.dashboard_address(self._given)

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
        retries: int = 0,
        folder: str | None = None,
    ) -> str:
        """Run `loadmaster ARGUMENTS` on the cluster; return the job's id.

        The working directory is a new folder in `storage`, an absolute path on the cluster, by
        default in its user's home. `cpus` and `gpus` are those of the command without its workers.
        `code` is a wheel to run instead of this installation's. With `retries`, the command is
        started again when its process dies. `folder` is that of a lost job, which this one
        continues.
        """
        name = name or submission.usual_name(arguments)
        job = submission.job_id(name, datetime.datetime.now(), secrets.token_hex(2))
        continues, folder = folder is not None, folder or submission.job_folder(storage, job)
        variables = submission.environment(env or {})
        shipped = str(code or wheel())
        labels = {COMMAND: shlex.join(arguments), submission.FOLDER: folder}
        with self._errors():
            self._ray.submit_job(
                entrypoint=submission.entrypoint(arguments, folder, retries, continues),
                submission_id=job,
                runtime_env={"py_modules": [shipped], "env_vars": variables},
                metadata={**(metadata or {}), **labels},
                entrypoint_num_cpus=cpus or None,
                entrypoint_num_gpus=gpus or None,
            )
        return job

    def list(self) -> list[Job]:
        """Return the jobs of loadmaster, latest first."""
        with self._errors():
            found = [details.model_dump() for details in self._ray.list_jobs()]
        ours = [job_from(each) for each in found if COMMAND in (each.get("metadata") or {})]
        return sorted(ours, key=lambda job: job.submitted_at or 0, reverse=True)

    def get(self, job: str) -> Job:
        with self._errors(job):
            return job_from(self._ray.get_job_info(job).model_dump())

    def find(self, name: str) -> Job:
        """Find the job of that id, or the only one whose id contains `name`."""
        known = {job.id: job for job in self.list()}
        matches = [name] if name in known else [each for each in known if name in each]
        if len(matches) == 1:
            return known[matches[0]]
        if matches:
            some = ", ".join(matches[:3])
            raise UnknownJobError(f"{name!r} matches {len(matches)} jobs: {some}; expected one")
        if not known:
            raise UnknownJobError(f"no job {name!r}: {self.address} has no jobs of loadmaster")
        raise UnknownJobError(str(unknown_name("job", name, [*known][:SUGGESTED])))

    def logs(self, job: str) -> str:
        """Return the output so far."""
        with self._errors(job):
            return str(self._ray.get_job_logs(job))

    def follow(self, job: str, wait_s: float = 0.0) -> Iterator[str]:
        """Yield the output as it is written, until the job ends; reconnects if necessary.

        A cluster that does not respond is waited for, at most `wait_s`.
        """
        seen = 0  # characters yielded
        while True:
            passed = 0
            for text in self._tail(job):
                if passed + len(text) > seen:
                    yield text[max(0, seen - passed) :]
                passed += len(text)
                seen = max(seen, passed)
            if self._get_within(job, wait_s).ended:
                return
            time.sleep(PAUSE_S)

    def _get_within(self, job: str, wait_s: float) -> Job:
        """The job, from a cluster that responds within `wait_s`; else raise UnreachableError."""
        end = time.monotonic() + wait_s
        while True:
            try:
                return self.get(job)
            except UnreachableError:
                if time.monotonic() >= end:
                    raise
                time.sleep(PAUSE_S)

    def wait(self, job: str, wait_s: float) -> Job:
        """Wait until the job ends, at most `wait_s`."""
        end = time.monotonic() + wait_s
        while not (found := self.get(job)).ended and time.monotonic() < end:
            time.sleep(PAUSE_S)
        return found

    def stop(self, job: str) -> bool:
        """Stop the job, which takes some seconds; False if it had ended already."""
        with self._errors(job):
            return bool(self._ray.stop_job(job))

    def _tail(self, job: str) -> Iterator[str]:
        import aiohttp

        lines = self._ray.tail_job_logs(job)

        async def following() -> str | None:
            return await anext(lines, None)

        # One Runner for all: on Ctrl-C it cancels the task before it raises.
        with asyncio.Runner() as runner:
            try:
                while (text := runner.run(following())) is not None:
                    yield text
            except (aiohttp.ClientError, RuntimeError, OSError):
                return  # the next call raises the reason

    @cached_property
    def _ray(self) -> Any:
        """Ray's client, created once the cluster responds."""
        token = self._token or access.cluster_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._check_responds(headers)
        from ray.job_submission import JobSubmissionClient

        for module in ("dashboard_sdk", "job.sdk"):  # they log every upload
            logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.WARNING)
        with _override_address(self.address):
            client = JobSubmissionClient(self.address, headers=headers)
        client._do_request = partial(client._do_request, timeout=TRANSFER_S)  # default: none
        return client

    def _check_responds(self, headers: Mapping[str, str]) -> None:
        """Request the version with a timeout; Ray's client has none."""
        import requests

        url = f"{self.address}/api/version"
        try:
            response = requests.get(url, headers=dict(headers), timeout=ANSWER_S)
        except OSError as fault:  # base of requests' errors
            raise self._unreachable(fault) from None
        if response.status_code in (401, 403):
            raise self._refused(bool(headers))
        if response.status_code != 200 or "ray_version" not in response.text:
            expected = "expected the address that `ray start --head` printed"
            raise InputError(f"{self.address} is no Ray dashboard; {expected}")

    @contextmanager
    def _errors(self, job: str | None = None) -> Iterator[None]:
        """Convert errors of Ray and requests to InputError."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except InputError:
            raise
        except AuthenticationError as fault:
            raise self._refused("required" not in str(fault)) from None
        except OSError as fault:
            raise self._unreachable(fault) from None
        except (RuntimeError, ValueError) as fault:
            reason = " ".join(str(fault).split())
            if job is not None and ("status code 404" in reason or "does not exist" in reason):
                raise UnknownJobError(f"the cluster at {self.address} has no job {job!r}") from None
            raise InputError(f"the cluster at {self.address} refused: {reason[:300]}") from None

    def _unreachable(self, fault: OSError) -> UnreachableError:
        return UnreachableError(
            f"no Ray cluster answers at {self.address} ({_reason(fault)}); expected the dashboard "
            f"of a running one: --address URL or {API_SERVER}"
        )

    def _refused(self, had_token: bool) -> InputError:
        what = "refuses the token" if had_token else "requires a token, and none is set"
        expected = f"expected its own in {access.AUTH_TOKEN} or in ~/.ray/auth_token"
        return InputError(f"the cluster at {self.address} {what}; {expected}")


def _reason(fault: BaseException) -> str:
    """The text of the operating system's error inside the errors of libraries."""
    import requests

    if isinstance(fault, requests.exceptions.Timeout):
        return "timeout"
    inner: BaseException | None = fault
    while inner is not None:
        for part in (inner, *inner.args):
            if isinstance(part, OSError) and part.strerror:
                return part.strerror
        inner = inner.__cause__ or inner.__context__
    return "the connection broke"


@contextmanager
def _override_address(address: str) -> Iterator[None]:
    """Set the variable by which Ray would override the given address."""
    before = os.environ.get(API_SERVER)
    os.environ[API_SERVER] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[API_SERVER]
        else:
            os.environ[API_SERVER] = before
