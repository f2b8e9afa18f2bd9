#!/usr/bin/env bash
# Chat with a model in the terminal; without one, answer one question and leave.
set -eu
cd "$(dirname "$0")/.."
model=${1:-smollm2}

.venv/bin/zllm pull "$model"
if [ -t 0 ]; then
  exec .venv/bin/zllm chat --model "$model"
fi
# Greedy: a small model that draws at random may answer nonsense.
exec .venv/bin/zllm chat --model "$model" --temperature 0 "What is the capital of France?" </dev/null
