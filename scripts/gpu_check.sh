#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: build, tests with none skipped for want of one, sanitizers, benchmark.
#   scripts/gpu_check.sh [FOLDER]     logs and JSON go to FOLDER (default build/gpu_check); one table at the end
# PART=build,tests,sanitizer,bench runs some of it.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu_check}
part=,${PART:-build,tests,sanitizer,bench},
python=${PYTHON:-python3}
export NERFKIT_NATIVE=1 NERFKIT_CUDA=1 REQUIRE_CUDA=1
mkdir -p "$out"
summary=()
failed=0

step() { # name, command...
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    summary+=("ok      $name ($((SECONDS - start)) s)")
  else
    summary+=("FAILED  $name ($((SECONDS - start)) s), see $out/$name.log")
    tail -n 15 "$out/$name.log"
    failed=1
  fi
}

# Forward and backward of every kernel: float64 by the layouts, float32 and float16 by the opchecks, every type forward;
# drawn sizes, convolutions on both sides of what their kernels take at once, LLTM of up to 64 units.
kernels="cuda-cuda and (layouts or opcheck or forward_is_the_naive_one or equals_the_definition or rows_of_a_capacity)"
kernels="($kernels) or (test_sizes and cuda-cuda) or (up_to_64_units and few_rays) or without_weight_gradient"

# Under racecheck cuBLAS fails at half products, which the gradient of LLTM's weight and wide networks take.
race="not ((opcheck or equals_the_definition or up_to_64_units) and (lltm or any_widths) and not float32)"

# initcheck has to see torch's kernels too, which write what ours read; it finds fault with torch's own sum over a large
# array of zeros, which LLTM's bias takes, and with what cuBLAS writes for networks that the mlp kernel does not take.
init="cuda-cuda and (layouts or (equals_the_definition and not (lltm or any_widths or (mlp-cuda and float32))))"

sanitize() { # tool, share of the tests
  local only=(--kernel-name kns=nerfkit) tests=$kernels
  case $1 in
    racecheck) tests="($kernels) and $race" ;;
    initcheck) only=() tests=$init ;;
  esac
  TEST_SHARE=$2/$shares PYTORCH_NO_CUDA_MEMORY_CACHING=1 EXAMPLES=3 "$sanitizer" --tool "$1" --error-exitcode 9 "${only[@]}" \
    "$python" -m pytest -x tests/ops -k "$tests" >"$out/$1-$2.log" 2>&1
}

wanted() { [[ $part == *,$1,* ]]; }

if wanted build; then
  step build "$python" setup.py build_ext -i
  step doctor "$python" -m nerfkit doctor
fi
if wanted tests; then
  pytest=("$python" -m pytest --numprocesses "${JOBS:-8}" --dist worksteal -rfEs --tb=short)
  step tests_gpu "${pytest[@]}" -m "cuda and not two_gpus"
  # The others fork processes that train, which torch refuses once its threads of a GPU run: they see no GPU, as in CI.
  CUDA_VISIBLE_DEVICES="" REQUIRE_CUDA="" step tests_cpu "${pytest[@]}" -m "not cuda and not two_gpus and not long"
  [[ -z ${REQUIRE_TWO_GPUS:-} ]] || step tests_two_gpus "$python" -m pytest -rfEs -m two_gpus
  tail -n 3 "$out"/tests_*.log
fi
if wanted sanitizer; then
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
  if [[ -z $sanitizer ]]; then
    summary+=("FAILED  sanitizer: compute-sanitizer was not found")
    failed=1
  else
    tools=(racecheck memcheck initcheck) shares=5
    for tool in "${tools[@]}"; do rm -f "$out/$tool"-*.log; done
    export -f sanitize
    export sanitizer python out kernels race init shares
    for share in $(seq $shares); do printf '%s\n' "${tools[@]/%/ $share}"; done |
      xargs -P "${JOBS:-8}" -L 1 bash -c 'sanitize "$@" && echo "$@"' _ >"$out/sanitizer.log"
    for tool in "${tools[@]}"; do
      passed=$(grep -hoE '[0-9]+ passed' "$out/$tool"-*.log | awk '{n += $1} END {print n + 0}') verdict="ok     "
      for share in $(seq $shares); do
        grep -qx "$tool $share" "$out/sanitizer.log" && continue # clean; one that was killed is missing, too
        verdict="FAILED " failed=1
        grep -E '^=========|^(FAILED|ERROR)' "$out/$tool-$share.log" | head -n 20
        tail -n 5 "$out/$tool-$share.log"
      done
      summary+=("$verdict $tool: $passed tests passed in $shares shares; logs are $out/$tool-*.log")
    done
  fi
fi
if wanted bench; then
  step bench "$python" -W ignore scripts/bench_ops.py --out "$out/ops.json"
  step tutorials "$python" -W ignore scripts/bench_ops.py --suite tutorials --out "$out/tutorials.json"
  step counters "$python" -W ignore scripts/counters.py
  cat "$out/counters.log" "$out/tutorials.log" "$out/bench.log"
fi
printf '%s\n' "${summary[@]}"
exit $failed
