"""A first answer: load a model, ask it something, and see what the answer cost.

python examples/first_answer.py
"""

import lastword

# Embedded: 5M parameters, answers on a CPU. "GSAI-ML/LLaDA-8B-Instruct" or a folder works as well.
model = lastword.load("tiny-llada-base")

answer = lastword.generate(
    model,
    "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n",
    recipe="fast",  # several tokens a pass; leave it out for one token a pass
)

print(answer.text)
print(f"planned: {answer.horizon} slots; written: {len(answer.tokens)} tokens")
print(f"probe: {answer.probe_cost.forward_passes} pass, {answer.probe_cost.tokens_computed} columns")
print(f"decoding: {answer.cost.forward_passes} passes, {answer.cost.tokens_computed} columns")
print(f"in all: {answer.seconds:.2f} s")
print(answer.finish.value)
