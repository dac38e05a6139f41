"""A training loop of your own on Spotlight's rollouts: flow matching, weighted by advantages."""

import torch

from spotlight import BlockingRollouts, ModelSpec, RolloutRequest, load_model

prompts = [f'the number "{number}"' for number in (1234, 5678, 9012, 3456)]
spec, size = ModelSpec(checkpoint="builtin:ocr-tiny"), {"height": 16, "width": 48}
torch.manual_seed(0)
model = load_model(spec)
optimizer = torch.optim.AdamW(model.transformer.parameters(), lr=5e-5)
with BlockingRollouts.local(model=spec, sampler=size, rewards=[{"kind": "ocr"}]) as rollouts:
    for step in range(3):
        rollouts.publish(model.transformer.state_dict(), version=step)
        groups = list(rollouts.rollout(RolloutRequest(prompt, range(8)) for prompt in prompts))
        rewards = torch.tensor([[sample.reward for sample in group.samples] for group in groups])
        print(f"step {step}: mean reward {rewards.mean():.3f}")
        advantages = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()
        samples = [sample for group in groups for sample in group.samples]
        clean = torch.stack([sample.latents for sample in samples])
        embeddings = model.encode_prompts([sample.prompt for sample in samples])
        for _ in range(16):  # passes over the samples, each with other noise
            noise = torch.randn_like(clean)
            sigma = (torch.randperm(len(clean)) + torch.rand(len(clean))) / len(clean)
            noisy = torch.lerp(clean, noise, sigma[:, None, None])
            velocity = model.velocity(noisy, sigma, embeddings, **size)
            error = (velocity - (noise - clean)).square().mean(dim=(1, 2))
            (advantages * error).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
