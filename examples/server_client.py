"""Ask a lastword server with the openai client: an answer, a stream, and a length without an answer.

lastword serve --model tiny-llada-instruct
python examples/server_client.py [http://127.0.0.1:8000]

The server needs the extra `serve`, this file `pip install openai`.
"""

import sys

from openai import OpenAI

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{server}/v1", api_key="none")  # a server with keys wants one of them
messages = [{"role": "user", "content": "Solve for n: 4n + 3 = 35."}]
asked = {"model": "tiny-llada-instruct", "messages": messages}

# How long will the answer be? One pass of the model, nothing is written.
lengths = client.post("/lengths", body={"messages": messages, "quantiles": [0.9]}, cast_to=object)
print(f"{lengths['mean']:.1f} tokens expected, nine of ten within {lengths['quantiles']['0.9']}")

# What is ours goes through extra_body. max_tokens would cap the answer; it does not size the canvas.
reply = client.chat.completions.create(**asked, extra_body={"recipe": "fast"})
print(reply.choices[0].message.content)
print(f"{reply.usage.completion_tokens} tokens, {reply.lastword['forward_passes']} passes")

# A stream: text comes as soon as no mask is left before it, and never changes afterwards.
for chunk in client.chat.completions.create(**asked, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
