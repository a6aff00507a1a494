"""Ollama's API: chat, generate, embed, tags, show, ps, version.

Owns: the wire schema, its translation to a chat or a completion, and the words of its lines.
May import: server's own modules and types. Read first: route.py, then shape.py.
"""
