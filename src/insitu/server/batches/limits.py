"""How much one tenant may keep, and how much of the server batches may use."""

from __future__ import annotations

MAX_FILE_BYTES = 200 * 2**20
MAX_FILES = 1000  # of a tenant, outputs included
MAX_LINES = 50_000
MAX_OPEN_BATCHES = 50  # of a tenant
NUM_AT_A_TIME = 4  # lines that are being answered, of all batches together
WINDOW_S = 24 * 60 * 60
# Behind whatever says nothing: a lower number runs earlier.
PRIORITY = 1000
