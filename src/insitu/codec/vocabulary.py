"""What a model file says of its tokens, before anything is built from it.

Not here: reading either file format (``gguf_vocabulary``, ``tokenizer_json``), encoding.

Always true: ids run from 0 to ``len(pieces) - 1``, and every id named is one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

from insitu.codec.byte_map import mapped_bytes
from insitu.weights.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

# What Gemma's vocabularies hold a token for, as for "\n\n": markup of ordinary text.
_MARKUP = frozenset(
    {
        "a", "b", "bbox", "blockquote", "body", "caption", "code", "div", "em", "footer", "h1",
        "h2", "h3", "h4", "h5", "h6", "html", "i", "iframe", "img", "li", "s", "span", "strong",
        "sub", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul",
    }
)  # fmt: skip


class TokenType(IntEnum):
    """GGUF's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class UnencodableText(Exception):
    """The vocabulary has no token, and no bytes, for ``character``."""

    def __init__(self, character: str) -> None:
        super().__init__(f"U+{ord(character):04X}")
        self.character = character


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and how text becomes ids.

    ``pieces``: each token as the file spells it; ``spell`` gives a normal one's bytes, ``byte_of``
    those of tokens that stand for one byte. ``added``: spelling to id of markers, matched as a
    whole and only where the template wrote them; ``texts``: of tokens matched as a whole in
    anybody's text, such as a run of line ends. ``eats_before``, ``eats_after``: markers that take
    the white space beside them. ``padding``: ids that stand for nothing. ``prefix_ids`` and
    ``suffix_ids``: what ``add_special_tokens`` puts around a text. ``special_texts``: bos_token and
    other names that templates know.

    ``encode_plain``: ids of text in which none of these is recognised, after a dummy space if it is
    asked to (which a detokenizer takes away); ``dummy_space``: it is asked to never, only at the
    first of a prompt, or always after a marker as well. ``is_lossy``: what it encodes is another
    form of the text, shorter by any factor; ``is_normalized``: its NFC form.
    """

    pieces: Sequence[str]
    added: dict[str, int]
    control_ids: frozenset[int]
    padding_ids: frozenset[int]
    end_ids: frozenset[int]
    encode_plain: Callable[[str, bool], list[int]]
    texts: dict[str, int] = field(default_factory=dict)
    spell: Callable[[str], bytes] = mapped_bytes
    byte_of: Mapping[int, int] = field(default_factory=dict)
    eats_before: frozenset[str] = frozenset()
    eats_after: frozenset[str] = frozenset()
    missing_bytes: bytes = b""
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    dummy_space: Literal["never", "first", "always"] = "never"
    is_normalized: bool = False
    is_lossy: bool = False
    special_texts: dict[str, str] = field(default_factory=dict)


def texts_among(user_defined: Iterable[str]) -> frozenset[str]:
    """User-defined tokens that are anybody's text rather than markers of a prompt's structure.

    They are blank, or one character, or a tag of ordinary markup of which the vocabulary has both
    ends. Whatever else is user-defined (``<think>``, ``<tool_call>``) a caller cannot write.
    """
    known = set(user_defined)

    def is_text(token: str) -> bool:
        name = token.strip("</>")
        is_tag = token in {f"<{name}>", f"</{name}>"} and name in _MARKUP
        has_both = f"<{name}>" in known and f"</{name}>" in known
        is_alone = is_tag and name in {"img", "li"}
        return not token.strip() or len(token) == 1 or (is_tag and (has_both or is_alone))

    return frozenset(filter(is_text, known))


def is_panic(error: BaseException) -> bool:
    """Whether the library gave up in the midst of its work, which is no Exception."""
    return type(error).__name__ == "PanicException"


class MergeFault(Exception):
    """Merge ``index`` cannot be: ``reason``."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"merge {index}: {reason}")
        self.index = index
        self.reason = reason


def build_bpe(
    normal: dict[str, int],
    merges: Collection[tuple[str, ...]],
    added: dict[str, int],
    **options: Any,
) -> Any:
    """The library's BPE model over normal tokens alone.

    A merge that would make or use an added token is left out: merging never spells a control token.
    """
    from tokenizers import models  # noqa: PLC0415 - slow to import

    def build(rules: Any) -> Any:
        return models.BPE(vocab=normal, merges=rules, **options)

    try:
        return build(merges)
    except BaseException as error:
        # The library names no index, and does not know added tokens. It panics at a merge that
        # makes more than its longest token.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        kept: list[tuple[str, ...]] = []
        for index, parts in enumerate(merges):
            if len(parts) != 2:
                raise MergeFault(index, f"is {shown(' '.join(parts))}, not two parts") from None
            left, right = parts
            unknown = [part for part in (left, right, left + right) if part not in normal]
            if not unknown:
                kept.append((left, right))
            elif not all(part in added for part in unknown):
                culprit = next(part for part in unknown if part not in added)
                raise MergeFault(index, f"{culprit[:80]!a} is not a token") from None
        if len(kept) == len(merges):
            raise
        return build(kept)
