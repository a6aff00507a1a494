"""The settings room: every setting once, as a flag, a key of the settings file, and its own help.

Owns: the fields, kinds of values, the order flag over file over default.
May import: nothing of ours. Read first: fields.py. Rooms receive values, never a ``Settings``.
"""
