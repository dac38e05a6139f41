"""Diffusion Transformers behind one seam, and the samplers that denoise with them."""
