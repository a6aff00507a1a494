"""How each family of byte-level vocabularies cuts text into words before merging.

Not here: pre-tokenizers that a tokenizer.json declares itself. The names are those that GGUF files
give as ``tokenizer.ggml.pre``, the expressions those of the families' own files.

Always true: a name that is not in the table is refused; guessing would give other ids in silence.
Each expression takes time linear in the text, whatever the text.
"""

# ruff: noqa: RUF001 - letters of many scripts

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.codec.letters import CASED_LETTERS
from insitu.codec.vocabulary import is_panic
from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TAIL = _SIGNS + _SPACES
_LLAMA3 = f"{_CONTRACTIONS}|{_WORD}|\\p{{N}}{{1,3}}{_TAIL}"
_QWEN2 = f"{_CONTRACTIONS}|{_WORD}|\\p{{N}}{_TAIL}"
# Words that begin with capitals and go on in small letters, as GPT-4o and its heirs cut them.
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(suffix: str, *, but: str = "") -> str:
    upper, lower = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"


_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_GPT4O = _cased(_CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _SLASHED
_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
_ASCII_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_DEEPSEEK3 = _ASCII_WORD + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES
_BLOOM = r" ?[^\s(|.,!?…。，、।۔،)]+"
_CUT_SPACES = "".join(rf"|\s{{{size}}}(?!\S)" for size in (512, 256, 128, 64, 32, 16, 8, 4))
_YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK
_ASIAN_SCRIPTS = (
    "[一-鿿㐀-䶿豈-﫿\u3040-ゟ゠-ヿ･-ﾟ⼀-⿟\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f"
    "\uaa60-\uaa7f\ua9e0-\ua9ff가-힯ᄀ-ᇿ]+"
)


@dataclass(frozen=True, slots=True)
class Family:
    """``splits``: expressions whose matches are words, applied one after the other.

    ``threes``: runs of digits are first cut in threes from their end: all, or those that end a
    word. ``whole_words``: a word of the vocabulary needs no merges. ``adds_bos``: what an absent
    ``add_bos_token`` means.
    """

    splits: tuple[str, ...] = (_GPT2,)
    threes: str = ""
    whole_words: bool = False
    adds_bos: bool = False


_TABLE: list[tuple[str, Family]] = [
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
        "modern-bert jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
        Family(),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        Family((r"\p{N}", _GPT2)),
    ),
    ("default", Family((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    ("falcon", Family((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Family((_LLAMA3,), whole_words=True, adds_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", Family((_LLAMA3,))),
    ("glm4 glm5", Family((_LLAMA3,), whole_words=True)),
    (
        "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open kormo f2llmv2 grok-2",
        Family((_QWEN2,)),
    ),
    (
        "qwen35",
        Family(
            (
                _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES,
            )
        ),
    ),
    ("ufakzeka", Family((f"{_WORD}|\\p{{N}}{_TAIL}",))),
    (
        "seed-coder",
        Family((f"{_CONTRACTIONS}|{_WORD}|\\p{{N}}| ?[^\\s\\p{{L}}\\p{{N}}\\r\\n]+{_SPACES}",)),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        Family(
            (
                r"'(?i:[sdmt]|ll|ve|re)|" + _WORD + r"|\p{N}" + _SIGNS
                + r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "exaone-moe",
        Family(
            (
                _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "minicpm5",
        Family(
            (r"\p{N}{1,3}", f"{_CONTRACTIONS}|{_WORD}|\\p{{N}}+{_TAIL}"), whole_words=True
        ),
    ),
    (
        "jais-2",
        Family(
            (
                f"{_CONTRACTIONS}|{_WORD}|\\p{{N}}{{1,3}}{_SIGNS}|\\s*[\\r\\n]+{_CUT_SPACES}"
                r"|\s{1,2}(?!\S)|\s{1}",
            )
        ),
    ),
    ("laguna", Family((r"[^\n]+|\n+", _QWEN2))),
    ("tekken", Family((_cased("") + r"|\p{N}" + _SLASHED,), whole_words=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Family((_GPT4O,))),
    ("granite-embed-multi-97m", Family((_GPT4O,), whole_words=True)),
    ("tiny_aya cohere2moe", Family((_GPT4O,), threes="ending")),
    (
        "kimi-k2",
        Family(
            (
                r"\p{Han}+|" + _cased(_CONTRACTIONS + "?", but=r"&&[^\p{Han}]")
                + r"|\p{N}{1,3}" + _TAIL,
            )
        ),
    ),
    (
        "youtu",
        Family(
            (_YOUTU_SCRIPTS, _cased(_CONTRACTIONS + "?") + r"|\p{N}" + _SLASHED), whole_words=True
        ),
    ),
    (
        "deepseek-llm",
        Family(
            (
                r"[\r\n]", rf"\s?[{CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
                r"(?<!\s)\s+$", r"[一-龥ࠀ-一가-\x{d7ff}]+", r"\p{N}+",
            )
        ),
    ),
    (
        "deepseek-coder",
        Family((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\x{d7ff}]+", r"\p{N}")),
    ),
    (
        "deepseek-v3 hunyuan-dense hy_v4 joyai-llm",
        Family((r"\p{N}{1,3}", _CJK, _DEEPSEEK3)),
    ),
    (
        "spark2_5",
        Family(
            (
                r"\p{N}{1,3}", _CJK,
                _ASCII_WORD + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]"
                r"|\s+(?!\S)|\s+",
                r"\p{N}",
            )
        ),
    ),
    ("afmoe", Family((_ASIAN_SCRIPTS, _DEEPSEEK3), threes="all")),
    ("poro-chat bloom gpt3-finnish", Family((_BLOOM,))),
    ("viking", Family((_BLOOM, r"\p{N}"))),
    ("superbpe", Family((r"\p{N}+",), threes="all")),
    (
        "chameleon",
        Family(
            (
                "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"[\t\n]|    |  ",
                r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2,
            ),
            adds_bos=True,
        ),
    ),
]  # fmt: skip
FAMILIES = {name: family for names, family in _TABLE for name in names.split()}


def word_encoder(tokenizer: Any, family: Family) -> Callable[[str, bool], list[int]]:
    """Ids of a text by the library's merges, after the family's cuts."""
    from tokenizers import Regex, pre_tokenizers  # noqa: PLC0415 - slow to import

    cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in family.splits]
    mapped = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, mapped])
    return plain_encoder(tokenizer, _CUTS.get(family.threes))


def plain_encoder(
    tokenizer: Any, cut: Callable[[str], list[str]] | None = None
) -> Callable[[str, bool], list[int]]:
    """Ids of a text by the library, which lets go of the GIL only in its batch calls."""

    def encode_plain(text: str, _: bool) -> list[int]:
        given, is_cut = ([cut(text)], True) if cut else ([text], False)
        try:
            (encoding,) = tokenizer.encode_batch_fast(
                given, is_pretokenized=is_cut, add_special_tokens=False
            )
        except BaseException as error:
            # It panics where a regular expression of the file takes too many steps.
            if not is_panic(error):
                raise
            message = f"The model's tokenizer cannot cut this text: {str(error)[:200]}."
            raise Refusal(message, code="unencodable_text") from None
        return list(encoding.ids)

    return encode_plain


_RUNS = re.compile(r"\d+")


def _in_threes(text: str) -> list[str]:
    """Runs of digits cut in threes from their end, the first group the rest: 1 234 567."""
    return list(_pieces(text, ending=False))


def _ending_in_threes(text: str) -> list[str]:
    """The same for runs that end a word."""
    return list(_pieces(text, ending=True))


def _pieces(text: str, *, ending: bool) -> Iterator[str]:
    start = 0
    for run in _RUNS.finditer(text):
        end = run.end()
        if ending and end < len(text) and _is_of_word(text[end]):
            continue
        if run.start() > start:
            yield text[start : run.start()]
        start = run.start()
        first = start + ((end - start) % 3 or 3)
        for at in range(first, end + 1, 3):
            yield text[start:at]
            start = at
    if start < len(text):
        yield text[start:]


def _is_of_word(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LM" or category in {"Nd", "Nl", "Pc"}


_CUTS = {"all": _in_threes, "ending": _ending_in_threes}
