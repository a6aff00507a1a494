"""Anthropic's Messages: create and count tokens.

Owns: the wire schema, its translation to a chat, and the words of its blocks and events.
May import: server's own modules and types. Read first: route.py, then shape.py.
"""
