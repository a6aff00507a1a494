"""OpenAI's Responses, without state: what is answered is not kept.

Owns: the wire schema, its translation to a chat, and the words of its items and events.
May import: server's own modules and types. Read first: route.py, then shape.py.
"""
