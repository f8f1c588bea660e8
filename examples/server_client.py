"""Use a lastword server with the openai client: predict a length, request an answer, and stream one.

lastword serve --model tiny-llada-instruct
python examples/server_client.py [http://127.0.0.1:8000]

The server needs the extra `serve`. The client needs the extra `client`, which is the package openai.
"""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{url}/v1", api_key="none")  # a server without keys ignores the key
messages = [{"role": "user", "content": "Solve for n: 4n + 3 = 35."}]
request = {"model": "tiny-llada-instruct", "messages": messages}

# Predict the length of the answer from one forward pass. No answer is decoded.
lengths = client.post("/lengths", body={"messages": messages, "quantiles": [0.9]}, cast_to=object)
print(f"expected length: {lengths['mean']:.1f} tokens; 90% of answers within {lengths['quantiles']['0.9']}")

# Fields that OpenAI's API does not have go into extra_body. max_tokens caps an answer; it does not size the canvas.
reply = client.chat.completions.create(**request, max_tokens=200, extra_body={"recipe": "fast"})
print(reply.choices[0].message.content)
print(f"{reply.usage.completion_tokens} tokens, {reply.lastword['forward_passes']} forward passes")

# A stream: text is sent as soon as no mask is left before it, and never changes afterwards.
for chunk in client.chat.completions.create(**request, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
