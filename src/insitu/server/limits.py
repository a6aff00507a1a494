"""Numbers that bound one request, beside those of ``body`` and of ``SamplingParams``.

Not here: a tenant's limits (``policy``), the model's (its card), the body's (``body``).
"""

MAX_PROMPTS = 64
MAX_INPUTS = 2048
MAX_INPUT_TOKENS = 300_000  # of all inputs of a request that embeds
MAX_NUMBERS = 2**20  # of all vectors of an answer
MAX_TOOLS = 128
MAX_STOP_IDS = 256
MAX_CHOICES = 4096
