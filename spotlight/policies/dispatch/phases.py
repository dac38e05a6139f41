"""How urgent a request is, given what was submitted so far, and whether more is to come."""

from __future__ import annotations

from spotlight.types import Request, RequestId, RequestKind

_URGENCY: dict[RequestKind, int] = {"rollout": 0, "preview": 1, "evaluation": 2}
_EVALUATION_WAITS = 2
"""An evaluation that is more iterations old is as urgent as a rollout."""


class Phases:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.begun = False
        """Whether anything was submitted: until then it is not settled from where a job goes on."""
        self._submitted: set[RequestKind] = set()
        self._iteration = -1
        """The latest whose seeds are chosen."""

    def urgency(self, request: Request) -> tuple[int, ...]:
        """Smaller goes first. Rollouts hold training up, previews are worth something until
        training ends, evaluations wait, but not forever; probes go last among rollouts."""
        urgency = _URGENCY[request.kind]
        if request.kind == "evaluation" and self._iteration - request.iteration > _EVALUATION_WAITS:
            urgency = 0
        return urgency, request.iteration, int(request.is_probe)

    def note(self, request: Request) -> bool:
        """A request was submitted; True if that changes the urgency of others."""
        self.begun = True
        if request.kind != "preview":  # those come bit by bit
            self._submitted.add(request.kind)
        if request.kind == "evaluation":
            return False
        return self.explored(request.iteration - (request.kind == "preview"))

    def explored(self, iteration: int) -> bool:
        """The seeds of an iteration are chosen; True if that changes the urgency of requests."""
        self.begun = True
        before, self._iteration = self._iteration, max(self._iteration, iteration)
        return self._iteration > before

    def may_come(self, request_id: str) -> bool:
        """Whether a request that is not known may yet be submitted."""
        known = RequestId.parse(request_id)
        if known is None:
            return False
        if known.kind == "preview":  # of an iteration whose seeds are not chosen yet
            return known.iteration > self._iteration
        if known.kind == "rollout" and known.iteration < self._iteration:
            return False  # where previews are trained on, none may ever be submitted
        return known.kind not in self._submitted
