"""langchain-openai's ChatOpenAI and OpenAI, plain, streamed, in batches and asynchronous."""

import asyncio

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

from settings import API_KEY, BASE_URL, MODEL

COMMON = {"base_url": f"{BASE_URL}/v1", "api_key": API_KEY, "model": MODEL, "temperature": 0,
          "max_retries": 0, "timeout": 120}


def chat() -> None:
    """Messages in, a message out; the stream's pieces join to the plain answer."""
    llm = ChatOpenAI(max_tokens=24, **COMMON)
    messages = [SystemMessage("You answer briefly."), HumanMessage("What is the sun?")]
    answer = llm.invoke(messages)
    assert answer.content and answer.usage_metadata["output_tokens"] <= 24, answer
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    pieces = [piece.content for piece in llm.stream(messages)]
    assert "".join(pieces) == answer.content and len(pieces) > 1, pieces

    chain = ChatPromptTemplate.from_messages([("user", "Say {word}")]) | llm | StrOutputParser()
    answers = chain.batch([{"word": word} for word in ("one", "two", "three")])
    assert len(answers) == 3 and all(answers), answers


def completions() -> None:
    """Text in, text out, several prompts in one request."""
    llm = OpenAI(max_tokens=16, **COMMON)
    text = llm.invoke("The capital of France is")
    assert text and "".join(llm.stream("The capital of France is")) == text
    generations = llm.generate(["One, two,", "A, B,"]).generations
    assert len(generations) == 2 and all(g[0].text for g in generations), generations


async def asynchronous() -> None:
    """The same over the asynchronous client, several at once."""
    llm = ChatOpenAI(max_tokens=8, **COMMON)
    answers = await asyncio.gather(*(llm.ainvoke(f"Count to {i}") for i in range(2, 8)))
    assert all(answer.content for answer in answers)
    assert [piece async for piece in llm.astream("Hello")]


def main() -> None:
    chat()
    completions()
    asyncio.run(asynchronous())
    print("langchain_openai_client: ok")


if __name__ == "__main__":
    main()
