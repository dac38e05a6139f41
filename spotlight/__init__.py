"""Spotlight: reinforcement-learning post-training of Diffusion Transformers on reserved and spot
GPUs.
"""

__version__ = "0.1.0"
