"""Nodes with caches of their own, which take the files of a checkpoint from each other."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from diffusers import QwenImageTransformer2DModel

from spotlight.assets import resolve_checkpoint
from spotlight.diffusion.hub_cache import is_wanted
from tests.diffusion.hub_kit import COMMIT, REPOSITORY, Hub, fill_cache, listening
from tests.integration.conftest import Workplace, events, wait_until
from tests.worker_templates import apart

pytestmark = pytest.mark.slow

LARGE = "transformer/diffusion_pytorch_model.safetensors"
LARGE_NBYTES = 128 * 1024 * 1024
"""At least so many are in the file that a node is killed in the middle of."""


class Cluster:
    """A coordinator, nodes and a hub on one machine, each with a cache of its own."""

    def __init__(self, workplace: Workplace, hub: Hub, address: str) -> None:
        self.workplace = workplace
        self.hub = hub
        self.run = workplace.folder / "runs" / "run"
        self._hub_address = address
        self._coordinator = workplace.folder / "address"
        listen = ("--listen", "127.0.0.1:0", "--address-file", self._coordinator)
        self._daemon("coordinator", "coordinator", *listen, "--runs", workplace.folder / "runs")
        wait_until(self._coordinator.exists, "the coordinator")

    def cache(self, name: str) -> Path:
        return self.workplace.folder / f"hub-{name}"

    def node(self, name: str, pool: str, **environment: str) -> subprocess.Popen[str]:
        options = ("--name", name, "--pool", pool)
        logs = ("--logs", self.workplace.folder / "logs")
        store = self.workplace.folder / f"store-{name}"  # in shared memory a kill would leave it
        store.mkdir()
        options += ("--store", str(store), "--host", "0.0.0.0", "--advertise", "127.0.0.1")
        return self._daemon(name, "node", *options, *logs, **environment)

    def submit(self, iterations: int = 1) -> None:
        job = self.workplace.job(
            model={"checkpoint": f"hf:{REPOSITORY}"},
            iterations=iterations,
            validation={"every": iterations},
        )
        with pytest.MonkeyPatch.context() as environment:
            for key, value in self._environment("coordinator").items():
                environment.setenv(key, value)
            done = self.workplace.spotlight("submit", job, "--run-folder", self.run)
        assert done.code == 0, done.errors

    def wait_for_node(self, name: str) -> None:
        wait_until(
            lambda: name in {event["node"] for event in events(self.run, "node_joined")}, name
        )

    def wait_for_copy(self, name: str) -> None:
        """Until the coordinator knows that this node has the checkpoint: only then do its workers
        begin."""
        wait_until(
            lambda: bool({"loading", "idle"} & self._states(name)), f"the checkpoint on {name}"
        )

    def wait_for_end(self) -> None:
        wait_until(lambda: bool(events(self.run, "run_finished")), "the end of the job")
        assert [event["outcome"] for event in events(self.run, "run_finished")] == ["finished"]

    def _states(self, name: str) -> set[str]:
        began = events(self.run, "worker_state")
        return {event["state"] for event in began if event["node"] == name}

    @property
    def downloads(self) -> Counter[str]:
        """How often the hub sent files of weights, which the coordinator does not need."""
        return Counter(name for name in self.hub.sent if name.endswith(".safetensors"))

    @property
    def weights(self) -> list[str]:
        return [name for name in self.hub.files() if name.endswith(".safetensors")]

    def cancel(self) -> None:
        assert self.workplace.spotlight("cancel").code == 0
        wait_until(lambda: bool(events(self.run, "run_finished")), "the end of the job")

    def has_all(self, name: str) -> bool:
        snapshot = self.cache(name) / f"models--{REPOSITORY.replace('/', '--')}/snapshots/{COMMIT}"
        wanted = [file for file in self.hub.files() if is_wanted(file)]
        return all(
            (snapshot / file).exists() and (snapshot / file).read_bytes() == self.hub.read(file)
            for file in wanted
        )

    def _environment(self, name: str) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self._hub_address,
            "HF_HUB_CACHE": str(self.cache(name)),
            "HF_HUB_DISABLE_XET": "1",
        }

    def _daemon(
        self, name: str, kind: str, *arguments: str | Path, **environment: str
    ) -> subprocess.Popen[str]:
        script = Path(__file__).parents[2] / "bin" / f"spotlight-{kind}"
        env = {**apart(), **self._environment(name), **environment}
        return self.workplace.start(sys.executable, script, *arguments, env=env)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    shutil.copytree(resolve_checkpoint("builtin:ocr-tiny"), folder)
    return folder


@pytest.fixture
def cluster(workplace: Workplace, repository: Path) -> Iterator[Cluster]:
    with listening(repository) as (hub, address):
        yield Cluster(workplace, hub, address)


@pytest.mark.parametrize("offline", ["0", "1"])
def test_two_nodes_download_a_checkpoint_once(cluster: Cluster, offline: str) -> None:
    cluster.submit(iterations=1000)  # a short job may be over before both have it
    cluster.node("one", "spot", HF_HUB_OFFLINE=offline)
    cluster.node("two", "reserved")
    wait_until(lambda: cluster.has_all("one") and cluster.has_all("two"), "both copies")
    assert cluster.downloads == dict.fromkeys(cluster.weights, 1)
    cluster.cancel()


def test_a_node_whose_source_dies_half_way_downloads_the_rest(
    cluster: Cluster, repository: Path
) -> None:
    make_large(repository)
    fill_cache(repository, cluster.cache("one"))
    cluster.submit()
    one = cluster.node("one", "spot")
    cluster.wait_for_copy("one")
    cluster.node("two", "reserved")
    place = cluster.cache("two")
    wait_until(lambda: _partial(place) > LARGE_NBYTES // 64, "the large file")
    one.send_signal(signal.SIGSTOP)
    assert _partial(place) < LARGE_NBYTES
    one.kill()
    cluster.wait_for_end()
    assert cluster.downloads == {LARGE: 1}
    assert cluster.has_all("two")


def test_wrong_bytes_of_another_node_are_refused_and_the_hub_is_asked(
    cluster: Cluster, repository: Path
) -> None:
    snapshot = fill_cache(repository, cluster.cache("one"))
    last = snapshot / cluster.weights[-1]
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.resolve().write_bytes(data)
    cluster.submit()
    cluster.node("one", "spot")
    cluster.wait_for_copy("one")
    cluster.node("two", "reserved")
    cluster.wait_for_end()
    assert cluster.downloads == {cluster.weights[-1]: 1}
    assert cluster.has_all("two")
    assert not cluster.has_all("one")


def make_large(repository: Path) -> None:
    """A transformer of one block, so that it is quick, and wide."""
    folder = repository / "transformer"
    config = json.loads((folder / "config.json").read_text())
    heads = 1024 // config["attention_head_dim"]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer = QwenImageTransformer2DModel.from_config(
            {**config, "num_layers": 1, "num_attention_heads": heads}
        )
    transformer.save_pretrained(folder)
    assert (repository / LARGE).stat().st_size > LARGE_NBYTES


def _partial(cache: Path) -> int:
    """Bytes of the file that is on its way."""
    found = 0
    for path in cache.rglob("*.incomplete"):
        with suppress(FileNotFoundError):
            found = path.stat().st_size
    return found
