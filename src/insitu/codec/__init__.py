"""The codec room: text to ids and back, and conversations to typed prompts.

Owns: tokenizers, the incremental detokenizer, chat templates; reasoning and calls in answers;
grammars. May import: weights, types; never engine. Read first: chat.py, then answer_text.py.
"""
