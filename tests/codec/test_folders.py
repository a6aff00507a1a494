"""tokenizer.json of every kind, trained small, against the library that wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from codec.tiny_vocabulary import folder
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Library

from insitu.codec.detokenizer import Detokenizer
from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.refusal import Refusal
from insitu.weights.errors import ModelFileError, UnsupportedModelError

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "hello world; hello there! numbers: 1 22 333, café Größe naïve, 日本語の文",
    "a  b   c\td",
] * 8  # fmt: skip
SPECIAL = ["<unk>", "<s>", "</s>", "<|turn|>"]
TEXTS = [
    "hello world", " lead", "trail ", "a  b", "", " ", "Größe 7", "日本 zz", "the dog\nthe fox",
    "▁x", "\U0001f680 fox", "numbers: 333", "<s> hello</s>", "caf\u0065\u0301", "\0a",
]  # fmt: skip
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def llama(*, prepend: str = "normalizer", byte_fallback: bool = True) -> Library:
    """As Llama 2 and Gemma write it: word marks, bytes for what has no piece."""
    library = Library(models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True))  # noqa: S106
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    if prepend == "normalizer":
        steps.insert(0, normalizers.Prepend("▁"))
    if prepend in {"first", "always"}:
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend, split=False)
    else:
        library.normalizer = normalizers.Sequence(steps)
    tokens = [*SPECIAL, *BYTES] if byte_fallback else SPECIAL
    marked = [line.replace(" ", "▁") for line in CORPUS]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=tokens, show_progress=False)
    library.train_from_iterator(marked if prepend == "none" else CORPUS, trainer)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return library


def unigram() -> Library:
    """As T5 and XLM-RoBERTa write it."""
    library = Library(models.Unigram())
    library.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    trainer = trainers.UnigramTrainer(
        vocab_size=90,
        special_tokens=SPECIAL,
        unk_token=SPECIAL[0],
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    library.decoder = decoders.Metaspace("▁", "always")
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return library


def of_bytes(*, metaspace: bool) -> Library:
    """As llm-jp's: the likeliest pieces, bytes for what has none."""
    marked = [f"▁{word}" for word in ("the", "hello", "world", "dog", "a", "numbers:", "fox")]
    words = ["hell", "lo", "he", "ll", "wor", "ld", "日本", "語", "ca", "fé", "in", "▁the▁dog"]
    letters = ["▁", *"abcdefghilmnoprstuwx,7"]
    scored = [(piece, -3.0 - i / 7) for i, piece in enumerate([*marked, *words])]
    scored += [(letter, -9.0 - i / 11) for i, letter in enumerate(letters)]
    pieces = [*((token, 0.0) for token in (*SPECIAL, *BYTES)), *scored]
    library = Library(models.Unigram(pieces, 0, byte_fallback=True))
    if metaspace:
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    else:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        library.normalizer = normalizers.Sequence(steps)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.add_special_tokens(SPECIAL)
    return library


def bert() -> Library:
    """As BERT writes it."""
    library = Library(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    library.train_from_iterator(CORPUS, trainer)
    library.decoder = decoders.WordPiece()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return library


def opened(library: Library, change: Any = None, **others: Any) -> Tokenizer:
    """Our tokenizer of the library's file."""
    file = json.loads(library.to_str())
    if library.to_str() and file["model"]["type"] == "BPE" and file["model"].get("byte_fallback"):
        # Byte pieces are no added tokens in real files.
        file["added_tokens"] = [t for t in file["added_tokens"] if t["content"] not in BYTES]
    if change is not None:
        change(file)
    return load_tokenizer(folder(file, **others))  # type: ignore[arg-type]


def without_added(library: Library) -> Library:
    """The library's tokenizer with no token matched as a whole, as for callers' text."""
    file = json.loads(library.to_str())
    file["added_tokens"] = []
    return Library.from_str(json.dumps(file))


KINDS = {
    "llama": llama,
    "first": lambda: llama(prepend="first"),
    "always": lambda: llama(prepend="always"),
    "gemma": lambda: llama(prepend="none"),
    "unigram": unigram,
    "of bytes": lambda: of_bytes(metaspace=False),
    "of bytes, first": lambda: of_bytes(metaspace=True),
    "bert": bert,
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_the_librarys(kind: str) -> None:
    library = KINDS[kind]()
    tokenizer, plain = opened(library), without_added(library)
    for text in TEXTS:
        if "<s>" in text or (kind == "unigram" and "\0" in text):
            continue
        if text:
            wanted = plain.encode(text, add_special_tokens=False).ids
            assert (
                tokenizer.encode(text, add_special_tokens=False, parse_special=False) == wanted
            ), text
        around = library.encode(text).ids
        assert tokenizer.encode(text, add_special_tokens=True, parse_special=True) == around, text


@pytest.mark.parametrize("kind", ["llama", "first", "always", "of bytes", "of bytes, first"])
def test_a_space_comes_back_as_it_went(kind: str) -> None:
    tokenizer = opened(KINDS[kind]())
    for text in TEXTS:
        keeps = kind in {"llama", "of bytes"}
        if "▁" in text or (not keeps and text.startswith(" ")):
            continue
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert tokenizer.detokenize(ids) == text
        detokenizer = Detokenizer(tokenizer)
        released = [one for token_id in ids for one in detokenizer.push(token_id)]
        assert "".join(one.text for one in [*released, *detokenizer.finish()]) == text


def test_after_a_marker_a_space_comes_only_where_the_file_says_so() -> None:
    for kind in ("llama", "first", "always", "gemma"):
        library = KINDS[kind]()
        text = "<s>hello<|turn|>world"
        wanted = library.encode(text, add_special_tokens=False).ids
        ids = opened(library).encode(text, add_special_tokens=False, parse_special=True)
        assert ids == wanted, kind


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_forges_a_marker(kind: str) -> None:
    tokenizer = opened(KINDS[kind]())
    markers = set(tokenizer.added_tokens.values())
    if kind in {"unigram", "bert"}:  # what has no piece is the unknown token
        markers -= {tokenizer.added_tokens.get(name) for name in ("<unk>", "[UNK]")}
    for marker in tokenizer.added_tokens:
        for text in (marker, f" {marker} ", f"a{marker}b", marker * 2):
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            assert not markers & set(ids), text


def test_byte_pieces_are_bytes() -> None:
    tokenizer = opened(llama())
    table = tokenizer.table()
    ids = tokenizer.encode("\U0001f680", add_special_tokens=False, parse_special=False)
    assert b"".join(table.token_bytes[i] for i in ids) == " \U0001f680".encode()
    assert table.special_ids >= {tokenizer.added_tokens[token] for token in SPECIAL}


def test_what_a_vocabulary_cannot_spell_is_refused() -> None:
    tokenizer = opened(llama(byte_fallback=False))
    with pytest.raises(Refusal, match=r"U\+1F680"):
        tokenizer.encode("fox \U0001f680", add_special_tokens=False, parse_special=False)


def test_bert_spells_words_apart() -> None:
    tokenizer = opened(bert())
    ids = tokenizer.encode("The Dog.", add_special_tokens=True, parse_special=False)
    assert tokenizer.detokenize(ids, show_control=False) == "the dog ."


def test_markers_take_the_blanks_beside_them() -> None:
    library = llama(prepend="none")
    library.add_special_tokens(
        [AddedToken("<|user|>", rstrip=True), AddedToken("<mask>", lstrip=True)]
    )
    tokenizer = opened(library)
    for text in (
        "<|user|>\n hello",
        "hello \n<mask> there",
        "<|user|>  <mask>",
        "<mask><|user|>\n",
    ):
        wanted = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=True) == wanted, text
    typed = [("<|user|>\n", True), ("\n hello", False)]
    assert (
        tokenizer.encode_typed(typed)
        == library.encode("<|user|>hello", add_special_tokens=False).ids
    )


def test_runs_of_blanks_are_text_though_they_are_added() -> None:
    """Gemma lists its runs of word marks among the added tokens; merging reaches them."""
    file = json.loads(llama(prepend="none").to_str())
    vocab = file["model"]["vocab"]
    file["added_tokens"] = [t for t in file["added_tokens"] if t["content"] not in BYTES]
    for size in (2, 3, 4):
        vocab.setdefault("▁" * size, len(vocab))
        for left in range(size - 1, 0, -1):
            file["model"]["merges"].insert(0, ["▁" * left, "▁" * (size - left)])
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for size in (2, 3, 4):
        run = "▁" * size
        file["added_tokens"].append({**added, "id": vocab[run], "content": run, "special": False})
    library = Library.from_str(json.dumps(file))
    tokenizer = load_tokenizer(folder(file))  # type: ignore[arg-type]
    for text in ("hello  world", " " * 11, "a   b", " lead", "▁ fox"):
        for parse_special in (False, True):
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
            assert ids == library.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.detokenize(ids) == text.replace("▁", " ")
    assert not {"▁▁", "▁▁▁"} & tokenizer.added_tokens.keys()


def test_other_files_say_what_is_special_and_what_goes_around() -> None:
    config = {
        "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "add_eos_token": False,
        "added_tokens_decoder": {"900": {"content": "<|tool|>", "special": True}},
    }  # fmt: skip
    special = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "additional_special_tokens": ["<x>"],
    }
    tokenizer = opened(
        llama(prepend="none"), tokenizer_config=config, special_tokens_map=special,
        added_tokens={"<x>": 901, "<y>": 902},
    )  # fmt: skip
    assert tokenizer.special_texts == {"bos_token": "<s>", "eos_token": "</s>"}
    ids = tokenizer.encode("a<x>", add_special_tokens=True, parse_special=True)
    assert ids[0] == tokenizer.added_tokens["<s>"]
    assert ids[-1] == 901
    assert tokenizer.is_control(900)
    assert tokenizer.is_control(901)
    assert not tokenizer.is_control(902)
    assert tokenizer.end_ids == {tokenizer.added_tokens["</s>"]}
    config["add_bos_token"] = False
    bare = opened(llama(prepend="none"), tokenizer_config=config, special_tokens_map=special)
    assert (
        bare.encode("a", add_special_tokens=True, parse_special=True)[0] != bare.added_tokens["<s>"]
    )


def test_a_beginning_that_is_there_is_not_doubled() -> None:
    tokenizer = opened(unigram())
    once = tokenizer.encode("hello", add_special_tokens=True, parse_special=True)
    assert tokenizer.encode("<s>hello</s>", add_special_tokens=True, parse_special=True) == once
    plain = tokenizer.encode("<s>hello", add_special_tokens=True, parse_special=False)
    assert plain[0] == once[0]
    assert len(plain) > len(once)


def _normal(kind: str, **step: Any) -> Any:
    return lambda file: file.update(normalizer={"type": kind, **step})


def _cut(**changes: Any) -> Any:
    return lambda file: file["pre_tokenizer"].update(changes)


def _model(**changes: Any) -> Any:
    return lambda file: file["model"].update(changes)


def _spoilt(file: dict[str, Any]) -> None:
    file["added_tokens"][0]["content"] = "<\udc00>"


@pytest.mark.parametrize(
    ("kind", "change", "where"),
    [
        ("bert", _model(max_input_chars_per_word=10**9), "max_input_chars_per_word"),
        ("bert", _model(unk_token="nobody"), "unk_token"),  # noqa: S106
        ("bert", lambda file: file.update(decoder={"type": "CTC"}), "decoder.type"),
        ("unigram", _model(unk_id=None), "unk_id"),
        ("unigram", _model(vocab=[["a", 10**400]]), r"model.vocab\[0\]"),
        ("unigram", _model(vocab=[["a"]]), r"model.vocab\[0\]"),
        ("unigram", _model(vocab=[["a", 0.0], ["a", 1.0]]), "model.vocab"),
        ("unigram", lambda file: file.update(pre_tokenizer=None), "Metaspace"),
        ("gemma", _model(dropout=0.1), "dropout"),
        ("gemma", lambda file: file["model"]["vocab"].update({"\ud800": 900}), "model.vocab.*surr"),
        ("gemma", _spoilt, r"added_tokens\[0\]: holds an unpaired surrogate"),
        ("unigram", _model(vocab=[["\udfff", 0.0]]), "model.vocab: holds an unpaired surrogate"),
        ("gemma", lambda file: file.update(normalizer={"type": "Shout"}), "normalizer.type"),
        ("gemma", lambda file: file.update(post_processor={"type": "Odd"}), "post_processor.type"),
        ("bert", _model(unk_token=["a"]), "unk_token"),
        ("bert", _model(continuing_subword_prefix=5), "continuing_subword_prefix"),
        ("unigram", _model(vocab=[["a", 10**400], ["b", 0.0]]), r"vocab\[0\]"),
        ("unigram", lambda file: file["model"]["vocab"].append(["b" * 513, 0.0]), "512 characters"),
        ("llama", _model(byte_fallback="yes"), "byte_fallback"),
        ("llama", _model(continuing_subword_prefix="##"), "continuing_subword_prefix"),
        ("llama", _normal("Prepend", prepend="x"), "normalizer.prepend"),
        (
            "first",
            _normal("Replace", pattern={"String": "a"}, content="b" * 65),
            "65 times as long",
        ),
        ("first", _normal("Replace", pattern={"Regex": "x*"}, content="b" * 64), "65 times"),
        ("unigram", _normal("Precompiled", precompiled_charsmap="/////w=="), "charsmap"),
        ("unigram", _normal("Precompiled", precompiled_charsmap="?"), "charsmap: is not base64"),
        ("first", _cut(replacement="x"), "pre_tokenizer.replacement"),
        ("first", _cut(prepend_scheme="sometimes"), "pre_tokenizer.prepend_scheme"),
        ("first", _cut(add_prefix_space=5), "pre_tokenizer.add_prefix_space"),
    ],
)
def test_what_is_not_known_is_refused_by_its_place(kind: str, change: Any, where: str) -> None:
    with pytest.raises((ModelFileError, UnsupportedModelError), match=where):
        opened(KINDS[kind](), change)


# Work in long words and long runs is bounded: BERT's words are unknown beyond a hundred characters.
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_text_is_encoded(kind: str) -> None:
    tokenizer = opened(KINDS[kind]())
    for unit in ("a", " ", "the", "日", "\u0301", "zq"):
        text = (unit * 100_000)[:100_000]
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert len(ids) <= len(text) * 4 + 1
