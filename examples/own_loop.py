"""A training loop of your own on Spotlight's rollouts: flow matching, weighted by advantages."""

import torch

from spotlight import BlockingRollouts, ModelSpec, RolloutRequest, load_model

SIZE = {"height": 16, "width": 48}
prompts = [f'the number "{number}"' for number in (1234, 5678, 9012, 3456)]
spec = ModelSpec(checkpoint="builtin:ocr-tiny")
model = load_model(spec)
optimizer = torch.optim.AdamW(model.transformer.parameters(), lr=1e-4)
with BlockingRollouts.local(model=spec, sampler=SIZE, rewards=[{"kind": "ocr"}]) as rollouts:
    for step in range(3):
        rollouts.publish(model.transformer.state_dict(), version=step)
        batch = [RolloutRequest(prompt, seeds=range(8)) for prompt in prompts]
        groups = list(rollouts.rollout(batch))
        rewards = torch.tensor([[sample.reward for sample in group.samples] for group in groups])
        print(f"step {step}: mean reward {rewards.mean():.3f}")
        for _ in range(8):  # passes over the samples, each with other noise
            for group, reward in zip(groups, rewards, strict=True):
                clean = torch.stack([sample.latents for sample in group.samples])
                noise, sigma = torch.randn_like(clean), torch.rand(len(clean))
                noisy = torch.lerp(clean, noise, sigma[:, None, None])
                embeddings = model.encode_prompts([group.request.prompt] * len(clean))
                velocity = model.velocity(noisy, sigma, embeddings, **SIZE)
                error = (velocity - (noise - clean)).square().mean(dim=(1, 2))
                ((reward - reward.mean()) * error).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
