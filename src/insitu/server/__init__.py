"""server: HTTP in, a ``types.Request`` to the Generator it was given, JSON or SSE out.

Owns: wire schema, error shape, SSE, guard (Host, Origin, keys), metrics, drain. May import:
``types`` (and starlette, uvicorn, pydantic, prometheus-client). Never builds an engine.
Read first: ``chat.py`` (one request whole), then ``answer.py`` and ``app.py``.
"""
