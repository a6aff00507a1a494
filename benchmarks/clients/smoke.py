"""Real clients against a running insitu: one chat each, streamed and whole, and the same text.

Where a client embeds, a text's vector alone and beside another.

    pip install openai anthropic ollama litellm langchain-openai llm
    insitu serve smollm2-135m --port 8377 &
    python benchmarks/clients/smoke.py http://127.0.0.1:8377

Not part of the tests: these clients are large. A client that is not installed is passed over; the
exit code is 1 if one that is installed fails.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

PROMPT = "Name a river."
MESSAGES = [{"role": "user", "content": PROMPT}]
TEXTS = ["Name a river.", "A cat sits on the mat."]


def shown(vector: list[float]) -> str:
    """The first numbers, as far as all clients read them."""
    return " ".join(f"{one:.6f}" for one in vector[:8])


def openai_chat(url: str) -> tuple[str, str]:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    asked = {"model": "default", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    stream = client.chat.completions.create(**asked, stream=True)
    return whole, "".join(one.choices[0].delta.content or "" for one in stream)


def openai_responses(url: str) -> tuple[str, str]:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    asked = {"model": "default", "input": PROMPT, "temperature": 0, "max_output_tokens": 16}
    with client.responses.stream(**asked) as stream:
        text = "".join(one.delta for one in stream if one.type == "response.output_text.delta")
    return client.responses.create(**asked).output_text, text


def anthropic_messages(url: str) -> tuple[str, str]:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="none")
    asked = {"model": "default", "messages": MESSAGES, "max_tokens": 12}
    extra = {"extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked, **extra).content[0].text
    with client.messages.stream(**asked, **extra) as stream:
        return whole, "".join(stream.text_stream)


def ollama_chat(url: str) -> tuple[str, str]:
    from ollama import Client

    client = Client(host=url)
    options = {"temperature": 0, "num_predict": 12}
    whole = client.chat("default", MESSAGES, options=options).message.content
    stream = client.chat("default", MESSAGES, options=options, stream=True)
    assert client.list().models
    assert client.show("default").capabilities
    return whole, "".join(one.message.content for one in stream)


def openai_embeddings(url: str) -> tuple[str, str]:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    packed = client.embeddings.create(model="default", input=TEXTS)
    plain = client.embeddings.create(model="default", input=TEXTS[1], encoding_format="float")
    return shown(packed.data[1].embedding), shown(plain.data[0].embedding)


def ollama_embed(url: str) -> tuple[str, str]:
    from ollama import Client

    client = Client(host=url)
    several = client.embed("default", TEXTS).embeddings
    return shown(several[1]), shown(client.embeddings("default", TEXTS[1]).embedding)


def litellm_embedding(url: str) -> tuple[str, str]:
    from litellm import embedding

    where = {"model": "openai/default", "api_base": f"{url}/v1", "api_key": "none"}
    several = embedding(input=TEXTS, **where).data[1]["embedding"]
    return shown(several), shown(embedding(input=TEXTS[1:], **where).data[0]["embedding"])


def langchain_embeddings(url: str) -> tuple[str, str]:
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        model="default", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    several = embeddings.embed_documents(TEXTS)[1]
    return shown(several), shown(embeddings.embed_query(TEXTS[1]))


def litellm_chat(url: str) -> tuple[str, str]:
    from litellm import completion

    asked = {
        "model": "openai/default",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 12,
    }
    stream = completion(**asked, stream=True)
    text = "".join(one.choices[0].delta.content or "" for one in stream)
    return completion(**asked).choices[0].message.content, text


def langchain_chat(url: str) -> tuple[str, str]:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        model="default", base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=12
    )
    return chat.invoke(PROMPT).content, "".join(one.content for one in chat.stream(PROMPT))


def llm_chat(url: str) -> tuple[str, str]:
    folder = Path(os.environ["LLM_USER_PATH"])
    entry = f"- model_id: here\n  model_name: default\n  api_base: {url}/v1\n  api_key_name: none\n"
    (folder / "extra-openai-models.yaml").write_text(entry)
    import llm

    model = llm.get_model("here")
    model.key = "none"
    how = {"temperature": 0, "max_tokens": 12}
    return model.prompt(PROMPT, stream=False, **how).text(), model.prompt(PROMPT, **how).text()


CLIENTS = {
    "openai": (openai_chat, openai_responses, openai_embeddings),
    "anthropic": (anthropic_messages,),
    "ollama": (ollama_chat, ollama_embed),
    "litellm": (litellm_chat, litellm_embedding),
    "langchain_openai": (langchain_chat, langchain_embeddings),
    "llm": (llm_chat,),
}


def main() -> int:
    url, num_failed = sys.argv[1].rstrip("/"), 0
    os.environ["LLM_USER_PATH"] = tempfile.mkdtemp()
    for package, checks in CLIENTS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{package}: not installed")
            continue
        for check in checks:
            try:
                whole, streamed = check(url)
                good = bool(whole) and whole == streamed
                said = repr(whole) if good else f"whole {whole!r}, streamed {streamed!r}"
            except Exception as error:
                good, said = False, f"{type(error).__name__}: {error}"
            num_failed += not good
            print(f"{check.__name__}: {'ok' if good else 'FAILED'}: {said[:200]}")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
