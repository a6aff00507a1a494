"""batches: OpenAI's files and batches, on local disk, under a folder that an operator gave.

A batch's lines are requests to the same app, through the same door and gate, behind interactive
work. Read first: ``runner.py``, then ``lines.py`` and ``store.py``.
"""
