#!/usr/bin/env bash
# What a machine with one GPU can show in eight minutes: `bash bench/gpu.sh`, in the repository's
# root, in an environment with PyTorch for that GPU, pytest, timm, transformers, peft and opacus.
# Each part has a limit of its own and writes into a file under $OUT as it goes; a part that fails
# stops no other. `DEVICE=cpu SMALL=1 bash bench/gpu.sh` tries the script on a processor.
set -u -o pipefail
OUT=${OUT:-$(mktemp -d)}
DEVICE=${DEVICE:-cuda}
SMALL=${SMALL:-}
PYTHON=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$OUT"

# part NAME SECONDS LINES COMMAND...: run it within its limit, and show its last lines.
part() {
  local name=$1 limit=$2 lines=$3 start=$SECONDS code=0
  shift 3
  timeout "$limit" "$@" > "$OUT/$name.txt" 2>&1 || code=$?
  echo "== $name: exit $code, $((SECONDS - start)) s"
  tail -n "$lines" "$OUT/$name.txt"
}

if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi
# Packages that were brought along, for a machine that reaches no registry; `pip wheel --no-deps .`
# makes privlearn's own, which says its version.
if [ -d "${WHEELS:-.whl}" ]; then
  SITE=$(mktemp -d)
  export PYTHONPATH=$PWD/src:$PWD:$SITE:$PYTHONPATH # the sources before privlearn's own wheel
  part install 45 3 "$PYTHON" -m pip install -q --no-index --no-deps --no-compile \
    --no-cache-dir --upgrade --target "$SITE" "${WHEELS:-.whl}"/*.whl
fi
part versions 30 3 "$PYTHON" -c "
import torch, privlearn
print('torch', torch.__version__, 'CUDA', torch.version.cuda)
print(torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU')"
part first-run 45 6 "$PYTHON" -m privlearn train --data digits --examples 1437 --epsilon 4 \
  --device "$DEVICE" --out "$OUT/model"
# These files alone: others need packages that such a machine may lack.
mapfile -t files < <(grep -rlE 'mark\.gpu|^@DEVICES' tests --include='test_*.py')
part tests 100 15 "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider -p no:xdist "${files[@]}"
if [ "$DEVICE" = cuda ]; then
  part faults 60 15 "$PYTHON" -m pytest -q -p no:cacheprovider -p no:xdist \
    tests/runs/faults_on_simulated.py
fi
if [ -n "$SMALL" ]; then
  part noise 60 12 "$PYTHON" bench/accelerator.py --device "$DEVICE" --noise 10000 100000
  part networks 120 40 "$PYTHON" bench/accelerator.py --device "$DEVICE" --small --steps 1 \
    --seconds 60 --out "$OUT/networks.jsonl"
  part cifar10 120 3 "$PYTHON" bench/wide_resnet.py --device "$DEVICE" --seconds 5 --batch 32 \
    --copies 2 --width 1 --examples 256
else
  part noise 40 16 "$PYTHON" bench/accelerator.py --device "$DEVICE" \
    --noise 1000000 10000000 100000000 1000000000
  part networks 150 40 "$PYTHON" bench/accelerator.py --device "$DEVICE" --seconds 125 \
    --out "$OUT/networks.jsonl"
  part profile 60 200 "$PYTHON" bench/accelerator.py --device "$DEVICE" --profile --steps 2 \
    --seconds 35 --only ResNet-18 ViT BERT LoRA MLP
  part cifar10 100 3 "$PYTHON" bench/wide_resnet.py --device "$DEVICE" --seconds 50
fi
echo "everything is in $OUT, after $SECONDS s"
