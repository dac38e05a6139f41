"""Exploration for an iteration: its plan, its previews, the seeds that are chosen, and the samples
of these that are finished while the iteration before is trained."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.tenant.request_plans import (
    TrainingPrompts,
    exploration_settings,
    finishing_requests,
    is_finishing,
    preview_id,
    preview_request,
    preview_settings,
    previewed,
    rollout_settings,
    scored_together,
)
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.explorer import Explorer, Orders, Preview
from spotlight.policies.exploration.finishing import Finish, Finishing, best_previews, misled
from spotlight.policies.exploration.reuse import MOST_DRIFT, NONE, may_reuse, patience
from spotlight.record.run_events import SamplesRegenerated
from spotlight.types import Request, Result

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class ExplorationPhase:
    """See the module's docstring."""

    def __init__(self, job: JobRunner, prompts: TrainingPrompts) -> None:
        self._job, self._spec = job, job.spec
        self._prompts = prompts
        self._explorer = Explorer(exploration_settings(job.spec))
        self._unused: tuple[str, ...] = ()
        """The requests whose samples nobody needs once the choice is on record."""
        self._finishes = False
        """Whether the kept seeds are finished with the weights of their previews."""
        self._finishing: Finishing | None = None
        """The kept seeds, while they are."""
        self._is_trained = self._regenerates = False
        """Whether the iteration before is trained, and whether its weights have moved too far."""

    def begin(self, iteration: int) -> None:
        """Begin to explore for an iteration."""
        progress = self._job.progress
        # Validation waits behind previews, so the end of the window is left to it.
        window_s = progress.window.predict() - self._job.shares.seconds_of("evaluation")
        if self._job.phase.name == "train":  # which may be under way
            window_s -= self._job.phase.seconds
        window_s = max(0.0, window_s)
        progress.metrics.window_s = window_s if window_s < math.inf else None
        prompts = self._prompts.of(iteration)
        plan = progress.exploration.plan(
            iteration, prompts, window_s, progress.saved.least_previews
        )
        reduction = progress.exploration.reduction(plan)
        if reduction is not None:
            self._job.event(reduction)
        progress.metrics.exploration_share = plan.share
        if progress.previews_mislead:
            self._job.event(misled(iteration, progress.saved.agreement))
        finishes = self._spec.exploration.finish == "previous"
        self._finishes = finishes and not progress.previews_mislead
        self._is_trained = self._regenerates = False
        withdrawn = self._withdraw()  # of the iteration that is trained, if any
        finish = self._finish(iteration, window_s) if self._finishes else None
        self._follow(
            self._explorer.start(plan, *self._moment(), withdrawn=withdrawn, finish=finish)
        )

    def end(self, iteration: int) -> None:
        """Choose now, or when the fixed budget is spent; where previews are trained on, as soon as
        it does not pay any more to wait for those in work. Kept seeds are finished before."""
        are_ahead = self._spec.trains_on_previews and self._may_reuse(iteration)
        self._is_trained, self._regenerates = True, not are_ahead
        reuses = are_ahead and not self._finishes
        waits, withdrawn = NONE, list[Preview]()
        if (
            are_ahead
            and self._spec.exploration.budget == "window"
            and not self._explorer.is_lacking
        ):
            withdrawn = self._withdraw()
            if reuses and not self._explorer.is_whole:
                waits = patience(
                    self._spec.samples_per_iteration,
                    self._explorer.scored + self._explorer.lacking,
                    self._explorer.scored,
                    self._job.requests.arrivals("preview", iteration),
                    self._job.phase.seconds,
                    self._job.progress.exploration.worth.curve(),
                )
        orders = self._explorer.stop(
            iteration,
            *self._moment(),
            reuses=reuses,
            finishes=are_ahead,
            waits=are_ahead or not self._spec.trains_on_previews,
            patience=waits,
            withdrawn=withdrawn,
            first_part_s=self._job.progress.window.predict() / 2,
        )
        self._follow(orders)
        self._end_finishing()
        if waits.limit_s:
            asyncio.get_running_loop().call_later(
                waits.limit_s, self._job.call_in_turn, self._go_on
            )

    @property
    def is_helped(self) -> bool:
        """Whether those who have trained make previews as well, or finish what these chose: the
        exploration does not end with training."""
        asked, least = self._spec.exploration, self._job.progress.saved.least_previews
        return asked.budget == "fixed" or asked.finish == "previous" or least > 0

    def settle(self, iteration: int) -> bool:
        """The first part of the iteration is trained: whether other samples of the later one are
        chosen since. That is on record then."""
        orders = self._explorer.settle(iteration)
        explored = orders.explored
        if explored is None:
            return False
        self._job.requests.expect_previews(self._explorer.unsubmitted)
        if orders.cancel:
            self._job.requests.cancel("preview")
        self._job.progress.settle(explored)
        if not self._job.phase.over:  # otherwise nothing is settled
            self._job.requests.release(self._ids(orders.unused))
        return True

    async def _go_on(self) -> None:
        self._follow(self._explorer.go_on(*self._moment()))

    def finished(self, results: Sequence[Result]) -> None:
        """Previews come in, in any order, each once."""
        if not results:
            return
        now, groups = self._moment()
        chosen_by = len(self._spec.rewards)  # those behind are to train on
        for one in results:
            self._explorer.finished(previewed(one.request), one.rewards[:chosen_by], now)
        self._follow(self._explorer.go_on(now, groups))

    def given_up(self, requests: Sequence[Request], reason: str) -> None:
        """Previews that could not be denoised or scored."""
        if requests:
            self._job.log.lines.warning("previews_given_up", count=len(requests), reason=reason)
            for request in requests:
                self._explorer.given_up(previewed(request))
            self._follow(self._explorer.go_on(*self._moment()))

    def samples_finished(self, results: Sequence[Result]) -> list[Result]:
        """Samples come in, in any order, each once; returns those that were not finished ahead."""
        if self._finishing is not None:
            self._finishing.finished(one.request.id for one in results)
            self._end_finishing()
        return [one for one in results if not self._is_ahead(one.request)]

    def samples_given_up(self, requests: Sequence[Request], reason: str) -> list[Request]:
        """Samples could not be denoised or scored; returns those that were not to be finished
        ahead. The prompt groups of the others are made anew."""
        others = [request for request in requests if not self._is_ahead(request)]
        if self._finishing is not None and len(others) < len(requests):
            count = len(requests) - len(others)
            self._job.log.lines.warning("samples_given_up", count=count, reason=reason)
            self._finishing.given_up(request.id for request in requests)
            self._end_finishing()
        return others

    def _is_ahead(self, request: Request) -> bool:
        """Whether a sample is finished for an iteration that has not begun, rather than made again
        since it was lost."""
        return is_finishing(request) and request.iteration > self._job.progress.metrics.iteration

    def release(self) -> None:
        """The seeds that were chosen last are on record: previews are used up, but for those that
        are trained on."""
        if self._spec.trains_on_previews:
            self._job.requests.release(self._unused)
        else:
            self._job.requests.forget("preview", self._job.progress.exploration.latest.iteration)

    def _may_reuse(self, iteration: int) -> bool:
        """Says so if not. Previews of the newest weights are not older than any sample."""
        if self._spec.exploration.weights == "fresh":
            return True
        drift = self._job.progress.training.get("drift")
        allowed = may_reuse(drift)
        if not allowed:
            self._job.event(SamplesRegenerated(iteration=iteration, drift=drift, most=MOST_DRIFT))
        return allowed

    def _follow(self, orders: Orders) -> None:
        self._job.requests.expect_previews(self._explorer.unsubmitted)
        # Workers choose among what waits: groups are to be whole before they get more.
        are_samples = self._spec.trains_on_previews and not self._finishes
        requests = [
            preview_request(self._spec, preview, are_samples=are_samples)
            for preview in orders.previews
        ]
        if self._spec.compares:
            size = self._spec.group_size
            heats = (requests[first : first + size] for first in range(0, len(requests), size))
            requests = [one for heat in heats for one in scored_together(self._spec.work, heat)]
        samples = self._spec.samples_per_iteration
        for first in range(0, len(requests), samples):
            self._job.requests.submit(requests[first : first + samples])
        if orders.cancel:
            self._job.requests.cancel("preview")
        if orders.explored is not None:
            self._unused = self._ids(orders.unused)
            if self._finishes and not self._regenerates:
                self._begin_finishing(orders.explored)
            else:
                self._accept(orders.explored)

    def _finish(self, iteration: int, window_s: float) -> Finish:
        """What it takes to finish the kept seeds; the window is the time until training ends."""
        spec, queue = self._spec, self._job.requests
        batch_s = queue.batch_s(rollout_settings(spec, iteration)) or 0.0
        preview_batch_s = queue.batch_s(preview_settings(spec, iteration)) or 0.0
        cost = spec.sampler.steps / spec.preview_steps
        if preview_batch_s > 0:
            cost = batch_s / preview_batch_s
        kept, worth = spec.samples_per_iteration, self._job.progress.exploration.worth
        at_once, window = spec.sampler.micro_batch * queue.free_groups(), 0.0
        if preview_batch_s > 0 and window_s < math.inf:
            window = window_s / preview_batch_s * at_once / kept
        best, pays = best_previews(spec.exploration.candidates, cost, window, worth.curve())
        return Finish(
            requests=kept + spec.exploration.probes,
            micro_batch=spec.sampler.micro_batch,
            batch_s=batch_s,
            preview_batch_s=preview_batch_s,
            best=best * kept,
            pays=pays or not worth.is_known,  # only previews tell
        )

    def _begin_finishing(self, explored: Explored) -> None:
        prompts = self._prompts.of(explored.iteration)
        requests = finishing_requests(self._spec, explored, prompts)
        self._finishing = Finishing(explored, requests)
        self._job.requests.submit(requests)

    def _end_finishing(self) -> None:
        """Training has ended, or a kept seed is finished: go on with what there is when nothing is
        missing, or at once if it is not trained on."""
        finishing = self._finishing
        if finishing is None or not self._is_trained:
            return
        if self._regenerates:
            self._job.requests.cancel("rollout")
            explored, unused = finishing.explored, finishing.requests
        elif finishing.is_over:
            explored, unused = finishing.outcome(), finishing.unused()
        else:
            return
        self._finishing = None
        self._unused += unused
        self._accept(explored)

    def _accept(self, explored: Explored) -> None:
        self._job.progress.exploration.accept(explored)
        wanted = [group for group, seeds in enumerate(explored.seeds) if seeds]
        self._job.explored(explored.iteration, set(wanted) == set(explored.reused))

    def _withdraw(self) -> list[Preview]:
        """The previews that nobody has begun."""
        return [previewed(request) for request in self._job.requests.withdraw("preview")]

    def _ids(self, previews: Iterable[Preview]) -> tuple[str, ...]:
        return tuple(preview_id(self._spec, preview) for preview in previews)

    def _moment(self) -> tuple[float, int]:
        """The time, and how many SP groups may preview now."""
        return asyncio.get_running_loop().time(), self._job.requests.previewing_groups()
