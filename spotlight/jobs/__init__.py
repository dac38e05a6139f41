"""What a user may ask for: the job, how it is read, and the checks before it starts."""

from spotlight.jobs.fields import MOST_WORKERS_OF_NODE
from spotlight.jobs.loading import (
    LARGEST_JOB_FILE,
    job_from_data,
    job_of_run,
    job_to_yaml,
    load_job,
    parse_job,
    parse_job_of_run,
    work_from_data,
)
from spotlight.jobs.remote_rewards import HttpSpec, JudgeSpec
from spotlight.jobs.rewards import RewardSpec, ScoringSpec
from spotlight.jobs.sampling import SamplerSpec, WindowSpec
from spotlight.jobs.sections import (
    ExplorationSpec,
    LoraSpec,
    ModelSpec,
    PoolSpec,
    PoolsSpec,
    PromptsSpec,
    ValidationSpec,
)
from spotlight.jobs.spec import JobSpec, WorkSpec
from spotlight.jobs.trackers import TrackerSpec
from spotlight.jobs.training import TrainingSpec

__all__ = [
    "LARGEST_JOB_FILE",
    "MOST_WORKERS_OF_NODE",
    "ExplorationSpec",
    "HttpSpec",
    "JobSpec",
    "JudgeSpec",
    "LoraSpec",
    "ModelSpec",
    "PoolSpec",
    "PoolsSpec",
    "PromptsSpec",
    "RewardSpec",
    "SamplerSpec",
    "ScoringSpec",
    "TrackerSpec",
    "TrainingSpec",
    "ValidationSpec",
    "WindowSpec",
    "WorkSpec",
    "job_from_data",
    "job_of_run",
    "job_to_yaml",
    "load_job",
    "parse_job",
    "parse_job_of_run",
    "work_from_data",
]
