"""The corruption process and the attention masks of diffusion language models."""
