"""Load a model, generate an answer, and print its cost.

python examples/first_answer.py
"""

import lastword

# An embedded model with 5M parameters. "GSAI-ML/LLaDA-8B-Instruct" or a checkpoint folder works as well.
model = lastword.load("tiny-llada-base")

answer = lastword.generate(
    model,
    "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n",
    recipe="fast",  # several tokens per forward pass; the default recipe decodes one
    max_new_tokens=200,  # a cap; the canvas has the predicted length
)

print(answer.text)
print(f"planned: {answer.horizon} slots; decoded: {len(answer.tokens)} tokens")
print(f"probe: {answer.probe_cost.forward_passes} forward pass, {answer.probe_cost.tokens_computed} tokens computed")
print(f"decoding: {answer.cost.forward_passes} forward passes, {answer.cost.tokens_computed} tokens computed")
print(f"time: {answer.seconds:.2f} s")
print(answer.finish.value)
