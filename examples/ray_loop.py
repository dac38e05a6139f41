"""A training loop under Ray on Spotlight's rollouts: groups go to the trainer as they are done."""

import ray
import torch

from spotlight import ModelSpec, RolloutRequest, Rollouts, load_model
from spotlight.rollouts.ray_actor import RolloutActor

SIZE = {"height": 16, "width": 48}
SPEC = ModelSpec(checkpoint="builtin:ocr-tiny")
PROMPTS = [f'the number "{number}"' for number in (1234, 5678, 9012, 3456)]


@ray.remote
class Trainer:
    def __init__(self):
        self.model = load_model(SPEC)
        self.optimizer = torch.optim.AdamW(self.model.transformer.parameters(), lr=1e-4)

    def weights(self):
        return self.model.transformer.state_dict()

    def learn_from(self, group):
        clean = torch.stack([sample.latents for sample in group.samples])
        weight = torch.tensor([sample.reward for sample in group.samples])
        noise, sigma = torch.randn_like(clean), torch.rand(len(clean))
        noisy = torch.lerp(clean, noise, sigma[:, None, None])
        embeddings = self.model.encode_prompts([group.request.prompt] * len(clean))
        velocity = self.model.velocity(noisy, sigma, embeddings, **SIZE)
        error = (velocity - (noise - clean)).square().mean(dim=(1, 2))
        (weight * error).mean().backward()
        return float(weight.mean())

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


ray.init()
trainer = Trainer.remote()
rollouts = ray.remote(RolloutActor).remote(
    lambda: Rollouts.local(model=SPEC, sampler=SIZE, rewards=[{"kind": "ocr"}])
)
for step in range(3):
    ray.get(rollouts.publish.remote(trainer.weights.remote(), version=step))
    batch = [RolloutRequest(prompt, seeds=range(8)) for prompt in PROMPTS]
    rewards = [trainer.learn_from.remote(group) for group in rollouts.rollout.remote(batch)]
    print(f"step {step}: mean reward {sum(ray.get(rewards)) / len(rewards):.3f}")
    trainer.update.remote()
ray.get(rollouts.close.remote())
