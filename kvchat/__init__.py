"""kvchat: a local desktop chat that owns its KV cache and never runs out of GPU memory."""

__version__ = "0.1.0"
