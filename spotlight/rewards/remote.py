"""Builds the scorers that ask a server, as a job describes them."""

from __future__ import annotations

from spotlight.errors import JobError, UserError
from spotlight.jobs import RewardSpec
from spotlight.jobs.remote_rewards import EndpointSpec
from spotlight.permissions import Permissions
from spotlight.rewards.authorization import read_authorization
from spotlight.rewards.endpoint import Endpoint, Poster
from spotlight.rewards.http_scorer import HttpScorer
from spotlight.rewards.judge import JudgeScorer, Rubric, Transcription


def build_remote_scorer(spec: RewardSpec, permissions: Permissions) -> HttpScorer | JudgeScorer:
    """The scorer of a reward of `kind: http` or `kind: judge`.

    Raises `JobError` when the authorization that it names is not there, or may not be sent there.
    """
    if spec.judge is not None:
        transcribes = spec.judge.formula == "ocr"
        question = Transcription() if transcribes else Rubric(spec.judge.rubric, *spec.limits)
        poster = _poster(spec.name, spec.judge, permissions)
        return JudgeScorer(poster, spec.judge.model, question, spec.judge.image_format)
    assert spec.http is not None
    return HttpScorer(
        _poster(spec.name, spec.http, permissions),
        image_format=spec.http.image_format,
        images_per_request=spec.http.images_per_request,
        limits=spec.range,
    )


def _poster(name: str, spec: EndpointSpec, permissions: Permissions) -> Poster:
    try:
        secret = permissions.secret_of(spec)
        authorization = read_authorization(secret.file, secret.variable) if secret else None
    except UserError as error:
        raise JobError(f"reward `{name}`", str(error)) from error
    return Poster(
        Endpoint(
            url=spec.url,
            authorization=authorization,
            attempts=spec.attempts,
            timeout_s=spec.timeout_s,
            concurrency=spec.concurrency,
            link_local=permissions.link_local,
        )
    )
