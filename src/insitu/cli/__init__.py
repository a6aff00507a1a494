"""The cli room: the verbs a person starts, each of which wires rooms together.

Owns: the table of verbs, flags made from settings, what is written to the terminal.
May import: every room; nothing imports this one. Read first: table.py. Each verb's module is
imported when that verb runs, and imports what it needs inside its functions: `--help` is quick.
"""
